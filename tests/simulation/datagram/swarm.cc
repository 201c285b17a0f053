// Flows of hosts to one under seeds: packets are lost, overtake each other, come twice and damaged, strangers add
// theirs, and flows end and begin anew. Whatever happens every frame of the flows that stay comes, once, in order and
// as it was sent, nothing stands still, and a port promises no more than it may.
#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>

#include <sodium.h>

#include "tests/simulation/datagram/path.h"
#include "tests/simulation/small_swarm.h"

namespace tensorlane::datagram {
namespace {

using test::Path;
using test::PathOptions;

struct Finding {
  std::string checker, message;
};

class Run {
 public:
  explicit Run(std::uint64_t seed) : seed_(seed), random_(seed * 7919), options_(draw_options(seed)), path_(options_) {
    if (random_() % 2 == 0) restarts_ = static_cast<unsigned>(1 + random_() % 6);
    every_ = 16u << random_() % 6;
  }

  std::optional<Finding> run() {
    const auto done = [&] {
      come_and_go();
      const bool given = feed();
      return !path_.wrong().empty() || !credit_is_kept() || (given && path_.complete() && path_.settled());
    };
    const bool ended = path_.run(seconds(60), done);
    for (const Path::Flow* flow : path_.flows())
      if (flow->failed.code() == Code::kTimedOut) return Finding{"progress", path_.wrong()};
    if (!path_.wrong().empty()) return Finding{"delivery", path_.wrong()};
    if (!credit_is_kept()) return Finding{"credit", "more credit is out than the window of the port allows"};
    if (!ended) return Finding{"progress", "it stands still for a minute"};
    if (auto left = look_at_end()) return left;
    if (seed_ % 32 == 5) return look_at_overtaking(seed_);
    return seed_ % 8 == 0 ? look_at_silence() : std::nullopt;
  }

 private:
  double draw(double most) { return std::uniform_real_distribution<double>(0, most)(random_); }

  PathOptions draw_options(std::uint64_t seed) {
    PathOptions options;
    options.seed = seed;
    options.loss = random_() % 3 == 0 ? 0 : draw(0.2);
    options.twice = draw(0.1);
    options.damage = random_() % 3 == 0 ? 0 : draw(0.05);
    options.forged = random_() % 3 == 0 ? 0 : draw(0.1);
    options.marks = random_() % 2 == 0 ? 0 : draw(0.3);
    options.jitter = microseconds(static_cast<std::int64_t>(draw(200)));
    options.level = static_cast<DataProtection>(seed % 3);
    options.classes = static_cast<std::uint8_t>(1 + random_() % 4);
    options.peers = static_cast<unsigned>(1 + random_() % 3);
    options.drops = random_() % 2 == 0;
    options.gathers = random_() % 3 == 0;
    options.config.give_up = seconds(50);
    options.config.packet_bytes = 300 + random_() % 8000;
    options.config.frames = 1 + random_() % 64;
    options.config.packets = 8 + random_() % 500;
    options.credits.unasked = Bytes(1 + random_() % (random_() % 4 == 0 ? 300 : 20'000));
    options.credits.window = Bytes(2'000 + random_() % (random_() % 2 == 0 ? 20'000 : 500'000));
    options.credits.quantum = random_() % 4 == 0 ? Bytes(50 + random_() % 500) : Bytes(500 + random_() % 16'000);
    options.credits.gives_up = microseconds(500 + static_cast<std::int64_t>(random_() % 5000));
    return options;
  }

  // Now and then a flow ends, and another one takes its place.
  void come_and_go() {
    if (restarts_ == 0 || random_() % every_ != 0) return;
    const std::vector<Path::Flow*> flows = path_.flows();
    if (flows.empty()) return;
    Path::Flow* flow = flows[random_() % flows.size()];
    if (!path_.has(1 - flow->end, flow->slot, flow->peer)) return;
    --restarts_;
    restarted_ = true;
    path_.restart(*flow, microseconds(static_cast<std::int64_t>(random_() % 2000)));
  }

  // As many frames as have room. True: that was all.
  bool feed() {
    bool given = true;
    for (Path::Flow* flow : path_.flows()) {
      const auto [found, added] = counts_.try_emplace(flow);
      if (added) found->second = random_() % (flow->slot == 0 ? 40 : 20) / options_.peers;
      const auto bytes = [&]() -> std::size_t {
        return flow->slot == 0 ? 0 : 1 + random_() % (random_() % 2 == 0 ? 2000 : 40'000);
      };
      while (flow->sends.given() < found->second && flow->send(bytes())) {
      }
      given = given && flow->sends.given() == found->second;
    }
    return given;
  }

  bool credit_is_kept() {
    const Credits::Options& bounds = options_.credits;
    const std::uint64_t most = bounds.window.value + bounds.quantum.value + bounds.unasked.value;
    return std::ranges::all_of(path_.flows(),
                               [&](const Path::Flow* flow) { return flow->association->promised() <= most; });
  }

  std::optional<Finding> look_at_end() {
    for (const Path::Flow* flow : path_.flows()) {
      const std::uint64_t given = path_.at(1 - flow->end, flow->slot, flow->peer).sends.given();
      std::uint64_t come = flow->receives.delivered();
      const std::uint64_t drops = flow->receives.drops;
      while (drops != 0 && come < given && come % drops == drops - 1) ++come;
      if (come != given)
        return Finding{"delivery", "of " + std::to_string(given) + " frames " + std::to_string(come) + " have come"};
      if (flow->association->outstanding() != 0) return Finding{"delivery", "something is outstanding"};
      // Else packets of an earlier association may have come.
      const bool undisturbed = !restarted_ && options_.forged == 0 && options_.damage == 0;
      if (undisturbed && flow->association->counters().forged != 0)
        return Finding{"forgery", "packets of the peer count as forged"};
    }
    return std::nullopt;
  }

  // Where nothing is lost, packets that overtake each other are taken for lost only until that has been learned.
  static std::optional<Finding> look_at_overtaking(std::uint64_t seed) {
    PathOptions options;
    options.seed = seed;
    options.jitter = microseconds(60 + static_cast<std::int64_t>(seed % 40));
    Path path(options);
    Path::Flow& flow = path.at(0, test::kBulk);
    const auto done = [&] {
      while (flow.sends.given() < 40 && flow.send(100'000)) {
      }
      return flow.sends.sent() == 40;
    };
    if (!path.run(seconds(20), done)) return Finding{"progress", "packets that overtake each other hold it up"};
    const AssociationCounters& counters = flow.association->counters();
    if (counters.packets_lost * 10 > counters.packets_sent)
      return Finding{"overtaking", "of " + std::to_string(counters.packets_sent) +
                                       " packets, none of which was lost, " + std::to_string(counters.packets_lost) +
                                       " are taken for lost"};
    return std::nullopt;
  }

  // The network goes away. Who waits says so; who does not, does not.
  std::optional<Finding> look_at_silence() {
    path_.run(seconds(3), [] { return false; });  // what is repeated until it is heard is heard
    path_.loss = 1;
    const std::vector<Path::Flow*> flows = path_.flows();
    Path::Flow* const waits = flows[random_() % flows.size()];
    waits->send(waits->slot == 0 ? 0 : 100);
    path_.run(seconds(60), [] { return false; });
    for (const Path::Flow* flow : flows) {
      if (flow == waits && flow->failed.code() != Code::kTimedOut)
        return Finding{"silence", "nobody says that the peer is silent, who is waited for"};
      if (flow != waits && !flow->failed.ok())
        return Finding{"silence", "who does not wait has given up: " + flow->failed.to_string()};
    }
    return std::nullopt;
  }

  const std::uint64_t seed_;
  std::mt19937_64 random_;
  const PathOptions options_;
  Path path_;
  std::map<const Path::Flow*, std::uint64_t> counts_;  // of frames
  unsigned restarts_ = 0, every_ = 0;                  // that may still come, and how rarely
  bool restarted_ = false;
};

}  // namespace
}  // namespace tensorlane::datagram

int main(int argc, char** argv) {
  if (sodium_init() < 0) return 2;
  return tensorlane::simulation::swarm_main(argc, argv, "datagram-swarm", "Runs flows of hosts to one under a seed.",
                                            [](std::uint64_t seed) { return tensorlane::datagram::Run(seed).run(); });
}
