// What a device does with a packet on its way from one port to another, by its configuration.
#pragma once

#include <cstdint>
#include <optional>

#include "common/json/json.h"
#include "switch-config/lint/observed.h"

namespace tensorlane::switches {

// A packet's marks; without a PCP it has no VLAN tag.
struct Marks {
  std::uint8_t dscp = 0;
  std::optional<std::uint8_t> pcp;
};

// What the configuration does not say is unset.
struct Treatment {
  bool by_dscp = false;             // else by PCP, or by neither
  std::optional<std::uint8_t> cls;  // where it enters
  std::optional<std::uint8_t> group;
  std::optional<bool> paused;                // PFC stops its sender
  std::optional<std::uint8_t> pfc_priority;  // in those pause frames
  std::optional<std::uint8_t> queue;         // where it leaves
  std::optional<lint::Scheduling> scheduling;
  std::optional<lint::Shaper> shaper;
  const lint::Ecn* ecn = nullptr;  // the device's; null: none
};

// Of a packet that enters by `in` and leaves by `out`, ports of one device.
Treatment treatment(const lint::Port& in, const lint::Port& out, const Marks& marks);

// {"class", "classified_by", "priority_group", "pfc", "pfc_priority", "queue", "scheduling": {"strict", "weight",
// "level"}, "ecn": {"kmin", "kmax", "percent", "unit"}, "shaper": {"percent", "bits_per_second"}}; what is unknown is
// null.
nlohmann::ordered_json to_json(const Treatment& treatment);

}  // namespace tensorlane::switches
