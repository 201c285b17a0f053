// Associations under seeds: packets are lost, overtake each other, come twice and damaged, strangers add theirs, and
// hosts begin anew, or close a class and open it again. Whatever happens every frame comes, once, in order and as it
// was sent, and nothing stands still.
#include <algorithm>
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
  explicit Run(std::uint64_t seed) : seed_(seed), random_(seed * 7919), options_(draw_options(seed)), path_(options_) {}

  std::optional<Finding> run() {
    const unsigned times = 1 + static_cast<unsigned>(random_() % 3);
    for (unsigned i = 0; i < times; ++i) {
      if (i > 0) path_.restart();
      draw_frames();
      const bool whole = i + 1 == times;
      const auto done = [&] {
        open_and_close();
        const bool given = feed();
        return !path_.wrong().empty() || !credit_is_kept() || (given && path_.open() && path_.settled());
      };
      // Else they begin anew while something is under way.
      const bool ended =
          path_.run(whole ? seconds(60) : microseconds(static_cast<std::int64_t>(random_() % 5000)), done);
      for (int i : {0, 1})
        if (path_.host(i).failed.code() == Code::kTimedOut) return Finding{"progress", path_.wrong()};
      if (!path_.wrong().empty()) return Finding{"delivery", path_.wrong()};
      if (!credit_is_kept()) return Finding{"credit", "more credit is out than the window of the port allows"};
      if (whole && !ended) return Finding{"progress", "it stands still for a minute"};
      if (ended) {
        if (auto left = look_at_end(times == 1)) return left;
      }
    }
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
    options.attach = random_() % 2 == 0;
    options.gathers = random_() % 3 == 0;
    options.config.give_up = seconds(50);
    options.config.packet_bytes = 300 + random_() % 8000;
    options.config.frames = 1 + random_() % 64;
    options.config.packets = 8 + random_() % 500;
    options.credits.unasked = Bytes(1 + random_() % 20'000);
    options.credits.window = Bytes(2'000 + random_() % (random_() % 2 == 0 ? 20'000 : 500'000));
    options.credits.quantum = Bytes(500 + random_() % 16'000);
    options.credits.gives_up = microseconds(500 + static_cast<std::int64_t>(random_() % 5000));
    return options;
  }

  void draw_frames() {
    closes_ = random_() % 2 == 0 ? 0 : static_cast<unsigned>(random_() % 6);
    for (int i : {0, 1}) {
      for (Slot slot = 0; slot <= options_.classes; ++slot) {
        counts_[i][slot] = random_() % (slot == 0 ? 40 : 20);
        if (slot > 0 && random_() % 3 == 0) path_.host(i).receives[slot]->drops = 3 + random_() % 5;
      }
    }
  }

  // Now and then a host closes a class; what is not attached is attached sooner or later.
  void open_and_close() {
    for (int i : {0, 1}) {
      for (Slot slot = 0; slot <= options_.classes; ++slot) {
        const bool attached = path_.host(i).association->attached(slot);
        if (!attached && random_() % 8 == 0) path_.attach(i, slot);
        if (attached && closes_ > 0 && random_() % 64 == 0) --closes_, path_.close(i, slot);
      }
    }
  }

  // As much as has room. True: that was all.
  bool feed() {
    bool given = true;
    for (int i : {0, 1}) {
      for (Slot slot = 0; slot <= options_.classes; ++slot) {
        test::End& end = *path_.host(i).sends[slot];
        const auto bytes = [&]() -> std::size_t {
          return slot == 0 ? 0 : 1 + random_() % (random_() % 2 == 0 ? 2000 : 40'000);
        };
        while (end.given() < counts_[i][slot] && path_.send(i, slot, bytes())) {
        }
        given = given && end.given() == counts_[i][slot];
      }
    }
    return given;
  }

  bool credit_is_kept() {
    const Credits::Options& bounds = options_.credits;
    for (int i : {0, 1})
      for (Slot slot = 0; slot <= options_.classes; ++slot)
        if (path_.host(i).association->attached(slot) &&
            path_.host(i).credits.ahead(path_.host(i).association->credit_stream(slot)) >
                bounds.window.value + bounds.quantum.value + bounds.unasked.value)
          return false;
    return true;
  }

  // `undisturbed`: no packet of an earlier association can have come.
  std::optional<Finding> look_at_end(bool undisturbed) {
    for (int i : {0, 1}) {
      for (Slot slot = 0; slot <= options_.classes; ++slot) {
        const std::uint64_t given = path_.host(1 - i).sends[slot]->given();
        std::uint64_t come = path_.host(i).receives[slot]->delivered();
        const std::uint64_t drops = path_.host(i).receives[slot]->drops;
        while (drops != 0 && come < given && come % drops == drops - 1) ++come;
        if (come != given)
          return Finding{"delivery", "of " + std::to_string(given) + " frames " + std::to_string(come) + " have come"};
        if (path_.host(i).association->outstanding(slot) != 0) return Finding{"delivery", "something is outstanding"};
      }
      const AssociationCounters& counters = path_.host(i).association->counters();
      if (undisturbed && options_.forged == 0 && options_.damage == 0 && counters.forged != 0)
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
    const auto done = [&] {
      while (path.host(0).sends[test::kBulk]->given() < 40 && path.send(0, test::kBulk, 100'000)) {
      }
      return path.host(0).sends[test::kBulk]->sent() == 40;
    };
    if (!path.run(seconds(20), done)) return Finding{"progress", "packets that overtake each other hold it up"};
    const AssociationCounters& counters = path.host(0).association->counters();
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
    const auto slot = static_cast<Slot>(random_() % (options_.classes + 1u));
    path_.send(0, slot, slot == 0 ? 0 : 100);
    path_.run(seconds(60), [] { return false; });
    if (path_.host(0).failed.code() != Code::kTimedOut)
      return Finding{"silence", "nobody says that the peer is silent, who is waited for"};
    if (!path_.host(1).failed.ok())
      return Finding{"silence", "who does not wait has given up: " + path_.host(1).failed.to_string()};
    return std::nullopt;
  }

  const std::uint64_t seed_;
  std::mt19937_64 random_;
  const PathOptions options_;
  Path path_;
  std::array<std::array<std::uint64_t, kSlots>, 2> counts_{};
  unsigned closes_ = 0;  // that are still to come
};

}  // namespace
}  // namespace tensorlane::datagram

int main(int argc, char** argv) {
  if (sodium_init() < 0) return 2;
  return tensorlane::simulation::swarm_main(argc, argv, "datagram-swarm", "Runs two hosts' associations under a seed.",
                                            [](std::uint64_t seed) { return tensorlane::datagram::Run(seed).run(); });
}
