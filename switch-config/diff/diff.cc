#include "switch-config/diff/diff.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace tensorlane::diff {
namespace {

using lint::Device;
using lint::kPriorities;
using lint::Port;

constexpr const char* kNothing = "not configured";

// One thing that a port does. Facts of the same `what` are compared.
struct Fact {
  std::string what;
  std::string value;
  std::optional<std::size_t> number;  // of the class that it is about
  const char* impact;
};
using Facts = std::vector<Fact>;

template <typename T>
std::string shown(const std::optional<T>& value, const char* unit) {
  return value ? fmt::format("{}{}", *value, unit) : std::string(kNothing);
}

std::string milliseconds_of(const std::optional<Duration>& time) {
  return time ? fmt::format("{} ms", time->value / 1'000'000) : std::string(kNothing);
}

// A map of which one side has nothing at all is one fact.
void add_map(Facts& facts, const lint::Map* map, const lint::Map* other, const char* what, const char* impact,
             bool about_source) {
  if (map == nullptr) return;
  if (other == nullptr) {
    facts.push_back({fmt::format("map of {}", what), "configured", {}, "all that it maps is treated otherwise"});
    return;
  }
  for (std::size_t from = 0; from < map->size; ++from) {
    const auto to = map->to[from];
    std::optional<std::size_t> about;
    if (about_source)
      about = from;
    else if (to)
      about = *to;
    facts.push_back({fmt::format("{} {}", what, from), shown(to, ""), about, impact});
  }
}

std::string buffer_text(const lint::Buffer& buffer) {
  switch (buffer.kind) {
    case lint::Buffer::Kind::kUnknown:
      return kNothing;
    case lint::Buffer::Kind::kLossy:
      return "lossy";
    case lint::Buffer::Kind::kComputed:
      return "lossless, headroom computed by the switch";
    case lint::Buffer::Kind::kLossless:
      break;
  }
  return buffer.xoff ? fmt::format("lossless, xoff {} bytes", buffer.xoff->value) : "lossless";
}

std::string ecn_text(const lint::Ecn* ecn) {
  if (ecn == nullptr || (!ecn->marks && !ecn->drops)) return "none";
  return fmt::format("{} between {} and {} {}, {} %", ecn->marks ? "marks" : "drops", ecn->kmin.value_or(0),
                     ecn->kmax.value_or(0), ecn->unit, ecn->percent.value_or(100));
}

// A shaper in percent is the rate that it comes to, where the speed is known.
std::string scheduling_text(const lint::Queue& queue, const std::optional<BitsPerSecond>& speed) {
  std::string text = kNothing;
  if (queue.scheduling) {
    const lint::Scheduling& scheduling = *queue.scheduling;
    text = scheduling.strict ? "strict" : scheduling.weight ? fmt::format("weight {}", *scheduling.weight) : "weighted";
    if (scheduling.level) text += fmt::format(", level {}", *scheduling.level);
  }
  if (!queue.shaper) return text;
  const auto& [percent, rate] = *queue.shaper;
  if (rate)
    text += fmt::format(", at most {} bit/s", rate->value);
  else if (percent && speed)
    text += fmt::format(", at most {:.0f} bit/s", static_cast<double>(speed->value) / 100 * *percent);
  else if (percent)
    text += fmt::format(", at most {:g} %", *percent);
  return text;
}

std::string pfc_text(const Port& port, std::size_t priority, const char* unsaid) {
  if (!port.pfc) return unsaid;
  if (!lint::has(*port.pfc, priority)) return "off";
  const unsigned on_wire = port.on_wire[priority];
  return on_wire == priority ? "on" : fmt::format("on, as priority {} of its frames", on_wire);
}

// What `port` does; where `other`, which it is compared with, has no map at all, that is one fact. unsaid_pfc: what PFC
// is where the port says nothing of it.
Facts facts_of(const Port& port, const Port& other, const char* unsaid_pfc) {
  Facts facts;
  add_map(facts, port.dscp_to_class, other.dscp_to_class, "DSCP", "packets with this DSCP change their class", false);
  add_map(facts, port.pcp_to_class, other.pcp_to_class, "PCP", "packets with this PCP change their class", false);
  add_map(facts, port.class_to_queue, other.class_to_queue, "queue of class", "the class changes its queue", true);
  add_map(facts, port.class_to_group, other.class_to_group, "priority group of class",
          "the class changes the buffer that it fills", true);
  add_map(facts, port.pfc_to_queue, other.pfc_to_queue, "queue that stops for PFC priority",
          "a pause stops another queue", true);
  for (std::size_t p = 0; p < kPriorities; ++p) {
    const char* const watched = !port.watched ? kNothing : lint::has(*port.watched, p) ? "on" : "off";
    facts.push_back(
        {fmt::format("PFC of priority {}", p), pfc_text(port, p, unsaid_pfc), p,
         "packets of the class are dropped or paused where they were not; set both ends of the link together"});
    facts.push_back({fmt::format("watchdog of priority {}", p), watched, p,
                     "a peer that pauses for ever stops the class, or no longer does"});
    facts.push_back({fmt::format("scheduling of queue {}", p), scheduling_text(port.queues[p], port.speed), p,
                     "the class gets another share of the port or another place in line"});
    facts.push_back({fmt::format("ECN of queue {}", p), ecn_text(port.queues[p].ecn), p,
                     "senders of the class slow down earlier or later"});
    facts.push_back({fmt::format("buffer of priority group {}", p), buffer_text(port.buffers[p]), p,
                     "the port's buffers are rebuilt: traffic of the class may stop or be lost for a moment"});
  }
  const auto dog = port.watchdog.value_or(lint::Watchdog{});
  if (port.watchdog && !dog.detection && !dog.restoration)
    facts.push_back({"watchdog", "on", {}, "a peer that pauses for ever stops the class, or no longer does"});
  facts.push_back({"watchdog detection", milliseconds_of(dog.detection), {}, "storms are noticed sooner or later"});
  facts.push_back(
      {"watchdog restoration", milliseconds_of(dog.restoration), {}, "a stopped queue comes back sooner or later"});
  facts.push_back({"speed",
                   port.speed ? fmt::format("{} bit/s", port.speed->value) : kNothing,
                   {},
                   "the link goes down and comes up"});
  facts.push_back(
      {"MTU", shown(port.mtu, " bytes"), {}, "larger packets are dropped; set both ends of the link together"});
  facts.push_back({"cable", shown(port.cable_metres, " m"), {}, "headroom is computed for another length"});
  return facts;
}

// Changes that are the same on several ports are one.
class Collector {
 public:
  // NX-OS lets the peer choose where a port does not say whether PFC is on; elsewhere it is off.
  Collector(const Device& wanted, const ClassNames& names)
      : device_(wanted.name), names_(names), unsaid_pfc_(wanted.language == "nxos" ? kNothing : "off") {}

  void add(const std::string& port, const std::string& what, const std::string& running, const std::string& wanted,
           std::optional<std::size_t> number, const char* impact) {
    const auto [found, inserted] = index_.emplace(std::array{what, running, wanted}, all_.size());
    if (inserted) {
      const bool named = number && *number < kPriorities && !names_[*number].empty();
      all_.push_back({device_, {}, named ? names_[*number] : "", what, running, wanted, impact});
    }
    if (!port.empty()) all_[found->second].ports.push_back(port);
  }

  void compare(const Port& running, const Port& wanted) {
    std::map<std::string, const Fact*> before;
    const Facts is = facts_of(running, wanted, unsaid_pfc_), asked = facts_of(wanted, running, unsaid_pfc_);
    for (const Fact& fact : is) before[fact.what] = &fact;
    for (const Fact& fact : asked) {
      const auto found = before.find(fact.what);
      const std::string value = found == before.end() ? kNothing : found->second->value;
      if (value != fact.value) add(wanted.name, fact.what, value, fact.value, fact.number, fact.impact);
      if (found != before.end()) before.erase(found);
    }
    for (const Fact& fact : is) {
      if (before.contains(fact.what) && fact.value != kNothing)
        add(wanted.name, fact.what, fact.value, kNothing, fact.number, fact.impact);
    }
  }

  std::vector<Change> take() { return std::move(all_); }

 private:
  std::string device_;
  const ClassNames& names_;
  const char* unsaid_pfc_;
  std::map<std::array<std::string, 3>, std::size_t> index_;
  std::vector<Change> all_;
};

}  // namespace

std::vector<Change> changes(const Device& running, const Device& wanted, const ClassNames& names) {
  Collector collector(wanted, names);
  if (running.watchdog_poll != wanted.watchdog_poll)
    collector.add("", "watchdog poll", milliseconds_of(running.watchdog_poll), milliseconds_of(wanted.watchdog_poll),
                  {}, "storms are noticed sooner or later");
  std::map<std::string, const Port*> before;
  for (const Port& port : running.ports) before[port.name] = &port;
  for (const Port& port : wanted.ports) {
    const auto found = before.find(port.name);
    if (found == before.end()) {
      collector.add(port.name, "port", kNothing, "configured", {}, "its traffic gets the classes of the fabric");
      continue;
    }
    collector.compare(*found->second, port);
    before.erase(found);
  }
  for (const Port& port : running.ports) {
    if (before.contains(port.name))
      collector.add(port.name, "port", "configured", kNothing, {},
                    "the fabric file does not list it: its traffic is not part of the classes");
  }
  return collector.take();
}

}  // namespace tensorlane::diff
