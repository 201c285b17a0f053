#include "common/protocol/plan.h"

#include <array>

#include "common/base/hash.h"

namespace tensorlane::protocol {
namespace {

constexpr std::array<const char*, kPatternCount> kPatternNames = {"ring", "parameter_server", "halving_doubling",
                                                                  "tree", "whole_server"};
constexpr std::array<const char*, kOrderingCount> kOrderingNames = {"tagged",  "funnel",   "concurrent",
                                                                    "chained", "counters", "negotiated"};

}  // namespace

const char* pattern_name(Pattern pattern) {
  const auto number = static_cast<std::size_t>(pattern);
  return number < kPatternCount ? kPatternNames[number] : "unknown";
}

std::optional<Pattern> pattern_from_name(std::string_view name) {
  if (name == "shuffle") return Pattern::kParameterServer;
  for (std::size_t i = 0; i < kPatternCount; ++i) {
    if (name == kPatternNames[i]) return static_cast<Pattern>(i);
  }
  return std::nullopt;
}

const char* ordering_name(Ordering ordering) {
  const auto number = static_cast<std::size_t>(ordering);
  return number < kOrderingCount ? kOrderingNames[number] : "unknown";
}

std::optional<Ordering> ordering_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kOrderingCount; ++i) {
    if (name == kOrderingNames[i]) return static_cast<Ordering>(i);
  }
  return std::nullopt;
}

std::uint64_t Plan::hash() const {
  Fnv1a h;
  h.add(version);
  h.add(rails);
  h.add(static_cast<std::uint8_t>(ordering));
  h.add(concurrent);
  for (const PlanTensor& t : tensors) {
    h.add(t.id.value);
    h.add(static_cast<std::uint8_t>(t.operation));
    h.add(static_cast<std::uint8_t>(t.reduce));
    h.add(static_cast<std::uint8_t>(t.dtype));
    h.add(static_cast<std::uint8_t>(t.pattern));
    h.add(t.cls.value);
    h.add(t.urgency);
    h.add(t.elements);
    h.add(t.row);
    h.add(t.slice_elements);
    h.add(t.root.value);
    h.add(t.root_rank.value);
    h.add(t.wide_contributions);
    h.add(t.group);
    h.add_text(t.name);
  }
  for (HostIndex host : rank_hosts) h.add(host.value);
  return h.value();
}

}  // namespace tensorlane::protocol
