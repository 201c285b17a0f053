#include "monitor/cli/verify_meetings.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace tensorlane::cli {
namespace {

constexpr double kMoreThan = 1.2;  // of what a port carries must come in, or no queue forms

// The slowest leg of a way before the one at `end`.
double slowest(const verify::Topology& topology, const verify::Way& way, std::size_t end) {
  double rate = 1e18;
  for (std::size_t i = 0; i < end; ++i) rate = std::min(rate, static_cast<double>(topology.leg(way[i]).speed.value));
  return rate;
}

double speed_of(const verify::Topology& topology, std::size_t leg) {
  return static_cast<double>(topology.leg(leg).speed.value);
}

bool is_slower_behind(const verify::Topology& topology, const verify::Way& way, std::size_t at) {
  for (std::size_t k = at + 1; k < way.size(); ++k)
    if (speed_of(topology, way[k]) < speed_of(topology, way[at])) return true;
  return false;
}

// Where two ways meet for the first time, if the port is slower than what they bring and nothing behind it is slower.
std::optional<std::size_t> meeting_of(const verify::Topology& topology, const verify::Way& a, const verify::Way& b) {
  for (std::size_t i = 1; i < a.size(); ++i) {
    const auto at = std::ranges::find(b, a[i]);
    if (at == b.end()) continue;
    const double in = slowest(topology, a, i) + slowest(topology, b, static_cast<std::size_t>(at - b.begin()));
    const bool fills = !is_slower_behind(topology, a, i) && in > kMoreThan * speed_of(topology, a[i]);
    return fills ? std::optional(a[i]) : std::nullopt;
  }
  return std::nullopt;
}

// The meetings on the way to one rail of one host.
class Receiver {
 public:
  using Done = std::set<std::pair<std::size_t, std::size_t>>;  // legs, or receivers; and rails

  Receiver(const VerifyState& state, std::size_t to, std::size_t rail)
      : state_(state), topology_(state.topology), to_(to), rail_(rail) {
    choose_senders();
  }

  void add_meetings(Done& done, std::vector<Meeting>& meetings) {
    if (!is_usable(to_) || senders_.size() < 2) return;
    if (topology_.empty()) {
      if (done.insert({to_, rail_}).second) meetings.push_back({senders_[0], senders_[1], to_, rail_, 0, false});
      return;
    }
    std::set<std::size_t> open = legs_that_fill();
    std::erase_if(open, [&](std::size_t leg) { return done.contains({leg, rail_}); });
    for (const std::size_t a : senders_)
      for (const std::size_t b : senders_) {
        if (a == b || open.empty()) continue;
        for (const verify::Way* one : through(a, open))
          for (const verify::Way* other : through(b, open)) {
            const auto leg = meeting_of(topology_, *one, *other);
            if (!leg || open.erase(*leg) == 0) continue;
            done.insert({*leg, rail_});
            meetings.push_back({a, b, to_, rail_, *leg, true});
          }
      }
  }

 private:
  bool is_usable(std::size_t host) const {
    return state_.seen.hosts[host].error.empty() && rail_ < state_.endpoints[host].size();
  }
  const std::vector<verify::Way>& ways(std::size_t from) const {
    return topology_.ways(state_.seen.hosts[from].name, state_.seen.hosts[to_].name, rail_);
  }

  // Hosts whose ways differ in nothing but their own cable meet others at the same ports: two of each kind are enough.
  void choose_senders() {
    using Kind = std::vector<std::pair<std::uint64_t, std::vector<std::size_t>>>;
    std::map<Kind, int> kinds;
    for (std::size_t host = 0; host < state_.seen.hosts.size(); ++host) {
      if (host == to_ || !is_usable(host)) continue;
      Kind kind;
      for (const verify::Way& way : ways(host))
        kind.emplace_back(topology_.leg(way.front()).speed.value, std::vector(way.begin() + 1, way.end()));
      std::ranges::sort(kind);
      if (++kinds[kind] <= 2) senders_.push_back(host);
    }
  }

  // Ports that the two fastest senders fill: the others need no search.
  std::set<std::size_t> legs_that_fill() const {
    std::map<std::size_t, std::map<std::size_t, double>> rates;  // of each sender through each leg
    for (const std::size_t from : senders_)
      for (const verify::Way& way : ways(from))
        for (std::size_t i = 1; i < way.size(); ++i)
          if (!is_slower_behind(topology_, way, i)) {
            double& rate = rates[way[i]][from];
            rate = std::max(rate, slowest(topology_, way, i));
          }
    std::set<std::size_t> legs;
    for (const auto& [leg, by_sender] : rates) {
      double first = 0, second = 0;
      for (const auto& [sender, rate] : by_sender) {
        second = std::max(second, std::min(first, rate));
        first = std::max(first, rate);
      }
      if (second > 0 && first + second > kMoreThan * speed_of(topology_, leg)) legs.insert(leg);
    }
    return legs;
  }

  std::vector<const verify::Way*> through(std::size_t from, const std::set<std::size_t>& legs) const {
    std::vector<const verify::Way*> found;
    for (const verify::Way& way : ways(from))
      if (std::ranges::any_of(way, [&](std::size_t leg) { return legs.contains(leg); })) found.push_back(&way);
    return found;
  }

  const VerifyState& state_;
  const verify::Topology& topology_;
  const std::size_t to_, rail_;
  std::vector<std::size_t> senders_;
};

}  // namespace

std::vector<Meeting> find_meetings(const VerifyState& state) {
  std::vector<Meeting> meetings;
  Receiver::Done done;
  for (std::size_t to = 0; to < state.seen.hosts.size(); ++to)
    for (std::size_t rail = 0; rail < state.endpoints[to].size(); ++rail)
      Receiver(state, to, rail).add_meetings(done, meetings);
  return meetings;
}

}  // namespace tensorlane::cli
