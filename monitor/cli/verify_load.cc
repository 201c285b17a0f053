#include "monitor/cli/verify_load.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "monitor/cli/verify_meetings.h"
#include "monitor/verify/trace.h"
#include "monitor/verify/verdict.h"

namespace tensorlane::cli {
namespace {

using nlohmann::json;
using verify::Estimate;
using verify::LoadFact;

// Of one measurement, in milliseconds: messages and a stream of the high class alone, a stream of the low one alone;
// then the low class all the time, messages in both classes from the sender of the high one, and its stream.
constexpr int kEchoMs = 300, kStreamMs = 250, kGapMs = 60, kSettleMs = 50;
// A busy host can make a good port look bad, but nothing makes a bad one look good: what has not passed is tried again.
constexpr int kAttempts = 3;
constexpr std::size_t kHighStreams = 2, kLowStreams = 4;
constexpr std::uint64_t kWindowMs = 25;

class LoadMeter {
 public:
  explicit LoadMeter(VerifyState& state) : state_(state), traces_(verify::trace_all(state.seen, state.topology)) {}

  void measure_all() {
    std::size_t ports = 0;
    for (const Meeting& meeting : find_meetings(state_)) {
      if (ports++ >= state_.options.max_loaded_ports) {
        leave_out(meeting, fmt::format("not loaded: {} ports are at most; name fewer hosts (--hosts, --agent)",
                                       state_.options.max_loaded_ports));
        continue;
      }
      const std::size_t before = state_.seen.loads.size();
      for (const bool ipv6 : {false, true})
        for (std::size_t high = 0; high + 1 < state_.options.classes.size(); ++high)
          for (std::size_t low = high + 1; low < state_.options.classes.size(); ++low)
            measure(meeting, ipv6, high, low);
      if (state_.seen.loads.size() == before && state_.options.classes.size() > 1)
        leave_out(meeting, "not loaded: its hosts have no addresses of one family that was asked for");
    }
  }

 private:
  LoadFact fact_of(const Meeting& meeting) const {
    LoadFact fact;
    fact.high_from = meeting.high_from, fact.low_from = meeting.low_from, fact.to = meeting.to;
    fact.rail = meeting.rail;
    if (meeting.known) {
      fact.node = state_.topology.leg(meeting.leg).from;
      fact.peer = state_.topology.leg(meeting.leg).to;
    }
    return fact;
  }

  void leave_out(const Meeting& meeting, std::string why) {
    LoadFact fact = fact_of(meeting);
    fact.left_out = true;
    const std::string& to = state_.seen.hosts[meeting.to].name;
    fact.error = meeting.known ? std::move(why) : fmt::format("towards {}: {}", to, why);
    state_.seen.loads.push_back(std::move(fact));
  }

  // A program ends when its lifetime is over, and a session that is asked nothing for a minute ends as well: also of
  // hosts that send nothing.
  void keep_alive() {
    std::vector<ProbeLines> commands(state_.hands.size());
    for (std::size_t i = 0; i < commands.size(); ++i)
      if (state_.seen.hosts[i].error.empty())
        commands[i].push_back({{"do", "describe"}, {"lifetime_s", kProbeLifetimeSeconds}});
    note_lost(state_.hands.ask(commands, seconds(20)));
  }

  // Who no longer answers, and why.
  void note_lost(const std::vector<Result<ProbeLines>>& answers) {
    for (std::size_t i = 0; i < answers.size(); ++i)
      if (!answers[i].ok())
        lost_.emplace(i, fmt::format("{}: {}", state_.seen.hosts[i].name, answers[i].status().to_string()));
  }

  // Source ports of flows that take the meeting's port; anything fits where there is one way only.
  std::vector<std::uint16_t> ports(const Meeting& meeting, std::size_t from, bool ipv6, std::size_t cls,
                                   std::size_t count) const {
    const std::string& sender = state_.seen.hosts[from].name;
    const auto& ways = state_.topology.ways(sender, state_.seen.hosts[meeting.to].name, meeting.rail);
    const bool all_pass = !meeting.known || std::ranges::all_of(ways, [&](const verify::Way& way) {
      return std::ranges::find(way, meeting.leg) != way.end();
    });
    if (all_pass) return std::vector<std::uint16_t>(count, 0);
    const verify::Leg& leg = state_.topology.leg(meeting.leg);
    std::vector<std::uint16_t> fit;
    for (std::size_t i = 0; i < state_.seen.flows.size() && fit.size() < count; ++i) {
      const verify::FlowFact& flow = state_.seen.flows[i];
      if (flow.from != from || flow.to != meeting.to || flow.rail != meeting.rail || flow.ipv6 != ipv6 ||
          flow.cls != cls)
        continue;
      const auto& nodes = traces_[i].nodes;
      for (std::size_t k = 0; k + 1 < nodes.size(); ++k)
        if (nodes[k].name == leg.from && nodes[k + 1].name == leg.to) fit.push_back(flow.source_port);
    }
    return fit;
  }

  struct Side {
    std::size_t host;
    json flow;
    std::vector<std::uint16_t> ports;
  };

  static json burst(const Side& side, const char* purpose, int start, int duration, std::size_t id) {
    json item = side.flow;
    item["id"] = id;
    item["purpose"] = purpose;
    item["start_ms"] = start;
    item["duration_ms"] = duration;
    item["source_ports"] = side.ports;
    return item;
  }

  // One that no longer answers, which it says. A job may have begun there: no burst may go to it, either.
  bool misses_a_host(LoadFact& fact) const {
    for (const std::size_t host : {fact.high_from, fact.low_from, fact.to}) {
      const auto found = lost_.find(host);
      if (found == lost_.end()) continue;
      fact.error = found->second;
      return true;
    }
    return false;
  }

  // Runs the bursts of both senders at once; what each burst brought is by its id.
  bool run(const Side& high, json high_bursts, const Side& low, json low_bursts, std::map<int, json>& seen,
           LoadFact& fact) {
    std::vector<ProbeLines> commands(state_.hands.size());
    const auto command = [&](json bursts) {
      return json{{"do", "load"}, {"token", state_.token}, {"bursts", std::move(bursts)}};
    };
    commands[high.host].push_back(command(std::move(high_bursts)));
    commands[low.host].push_back(command(std::move(low_bursts)));
    const auto answers = state_.hands.ask(commands, seconds(20));
    note_lost(answers);
    if (misses_a_host(fact)) return false;
    for (const std::size_t host : {high.host, low.host}) {
      for (const json& line : *answers[host]) {
        if (line["kind"] != "burst") continue;
        if (probe_text(line, "outcome") != "arrived") {
          fact.error = fmt::format("a burst from {} did not come about: {}", state_.seen.hosts[host].name,
                                   probe_text(line, "outcome"));
          return false;
        }
        seen[probe_number(line, "id", 0, 100).value_or(-1)] = line;
      }
    }
    return true;
  }

  static std::vector<BurstSlots> streams_of(const json& burst) {
    std::vector<BurstSlots> streams;
    const auto list = burst.find("streams");
    if (list == burst.end() || !list->is_array()) return streams;
    for (const json& item : *list) {
      if (!item.is_object() || !item.contains("bytes") || !item["bytes"].is_array()) continue;
      BurstSlots slots;
      const auto start = item.find("start_ms");
      if (start == item.end() || !start->is_number_unsigned()) continue;
      slots.start_ms = start->get<std::uint64_t>();
      slots.slot_ms = static_cast<std::uint32_t>(probe_number(burst, "slot_ms", 1, 1000).value_or(5));
      for (const json& bytes : item["bytes"])
        if (bytes.is_number_unsigned() && slots.bytes.size() < 4096) slots.bytes.push_back(bytes.get<std::uint64_t>());
      streams.push_back(std::move(slots));
    }
    return streams;
  }
  static std::pair<std::uint64_t, std::uint64_t> span_of(const std::vector<BurstSlots>& streams) {
    std::uint64_t first = UINT64_MAX, last = 0;
    for (const BurstSlots& stream : streams) {
      first = std::min(first, stream.start_ms);
      last = std::max(last, stream.start_ms + stream.bytes.size() * stream.slot_ms);
    }
    return {first, last};
  }
  static Estimate rate_alone(const json& burst) {
    const auto streams = streams_of(burst);
    if (streams.empty()) return {};
    const auto [first, last] = span_of(streams);
    return median_of(window_rates(streams, first + kSettleMs, std::min(last, first + kStreamMs)));
  }
  static Estimate delay_of(const json& burst) {
    std::vector<double> values;
    const auto list = burst.find("delays_us");
    if (list != burst.end() && list->is_array())
      for (const json& value : *list)
        if (value.is_number()) values.push_back(value.get<double>());
    return median_of(std::move(values));
  }
  static std::uint64_t retransmitted(const json& burst) {
    return static_cast<std::uint64_t>(probe_number(burst, "retransmitted", 0, 1 << 30).value_or(0));
  }

  void measure(const Meeting& meeting, bool ipv6, std::size_t high, std::size_t low) {
    Side fast{meeting.high_from, flow_between(state_, meeting.high_from, meeting.to, meeting.rail, ipv6, high),
              ports(meeting, meeting.high_from, ipv6, high, kHighStreams)};
    Side slow{meeting.low_from, flow_between(state_, meeting.low_from, meeting.to, meeting.rail, ipv6, low),
              ports(meeting, meeting.low_from, ipv6, low, kLowStreams)};
    const Side behind{meeting.high_from, flow_between(state_, meeting.high_from, meeting.to, meeting.rail, ipv6, low),
                      ports(meeting, meeting.high_from, ipv6, low, 1)};
    if (fast.flow.is_null() || slow.flow.is_null()) return;
    LoadFact fact = fact_of(meeting);
    fact.high = high, fact.low = low, fact.ipv6 = ipv6;
    if (fast.ports.empty() || slow.ports.empty() || behind.ports.empty())
      fact.error = "no source port is known whose way goes through this port";
    if (!fact.error.empty() || misses_a_host(fact)) {
      state_.seen.loads.push_back(std::move(fact));
      return;
    }
    LoadFact attempt;
    for (int i = 0; i < kAttempts; ++i) {
      attempt = fact;
      compare(fast, slow, behind, attempt);
      if (verify::judge_measurement(attempt) == verify::Outcome::kPassed || !attempt.error.empty()) break;
    }
    state_.seen.loads.push_back(std::move(attempt));
  }

  void compare(const Side& fast, const Side& slow, const Side& behind, LoadFact& fact) {
    keep_alive();
    if (misses_a_host(fact)) return;
    std::map<int, json> alone, beside;
    const int second = kEchoMs + kGapMs, third = second + kStreamMs + kGapMs;
    if (!run(fast, {burst(fast, "echo", 0, kEchoMs, 1), burst(fast, "sink", second, kStreamMs, 2)}, slow,
             json::array({burst(slow, "sink", third, kStreamMs, 3)}), alone, fact))
      return;
    const int stream = kGapMs + kEchoMs + kGapMs, all = stream + kStreamMs + 2 * kGapMs;
    if (!run(fast,
             {burst(fast, "echo", kGapMs, kEchoMs, 1), burst(fast, "sink", stream, kStreamMs, 2),
              burst(behind, "echo", kGapMs, kEchoMs, 4)},
             slow, json::array({burst(slow, "sink", 0, all, 3)}), beside, fact))
      return;
    fact.high_alone = rate_alone(alone[2]).value;
    fact.low_alone = rate_alone(alone[3]).value;
    fact.delay_alone_us = delay_of(alone[1]);
    fact.delay_beside_us = delay_of(beside[1]);
    fact.delay_low_us = delay_of(beside[4]);
    fact.high_retransmitted = retransmitted(beside[2]);
    fact.low_retransmitted = retransmitted(beside[3]);
    const auto streams = streams_of(beside[2]);
    if (streams.empty() || fact.high_alone <= 0) {
      fact.error = "the receiver counted nothing";
      return;
    }
    const auto [first, last] = span_of(streams);
    const std::uint64_t from = first + kSettleMs, until = std::min(last, first + kStreamMs);
    std::vector<double> shares = window_rates(streams, from, until);
    for (double& share : shares) share /= fact.high_alone;
    fact.share = median_of(std::move(shares));
    fact.low_beside = median_of(window_rates(streams_of(beside[3]), from, until)).value;
  }

  VerifyState& state_;
  const std::vector<verify::Trace> traces_;
  std::map<std::size_t, std::string> lost_;  // hosts that have stopped to answer, and what they said
};

}  // namespace

std::vector<double> window_rates(const std::vector<BurstSlots>& streams, std::uint64_t from_ms,
                                 std::uint64_t until_ms) {
  if (until_ms < from_ms + kWindowMs) return {};
  std::vector<double> rates((until_ms - from_ms) / kWindowMs);
  for (const BurstSlots& stream : streams)
    for (std::size_t i = 0; i < stream.bytes.size(); ++i) {
      const std::uint64_t at = stream.start_ms + i * stream.slot_ms;
      if (at < from_ms || (at - from_ms) / kWindowMs >= rates.size()) continue;
      rates[(at - from_ms) / kWindowMs] += static_cast<double>(stream.bytes[i]) * 8 * 1000 / kWindowMs;
    }
  return rates;
}

Estimate median_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto count = static_cast<double>(values.size());
  const auto at = [&](double rank) {
    return values[static_cast<std::size_t>(std::clamp(std::floor(rank), 0.0, count - 1))];
  };
  const double spread = 0.98 * std::sqrt(count);
  return {at(count / 2), at(count / 2 - spread), at(count / 2 + spread)};
}

void measure_load(VerifyState& state) {
  LoadMeter(state).measure_all();
}

}  // namespace tensorlane::cli
