#include "switch-config/lint/host.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "switch-config/headroom/headroom.h"

namespace tensorlane::lint {
namespace {

constexpr BitsPerSecond kSlowest{40'000'000'000};  // the NIC counts slower links as this one
constexpr std::uint64_t kShortestMtu = 1500;

// Lossy priorities in what belongs to lossless ones.
void check_shared(const HostSettings& host, PrioritySet pfc, Context& context) {
  for (std::size_t p = 0; p < kPriorities; ++p) {
    for (std::size_t q = 0; q < kPriorities; ++q) {
      if (!has(pfc, p) || has(pfc, q)) continue;
      if (host.classes[p] && host.classes[p] == host.classes[q])
        context.warning(
            "L2", host.class_places[*host.classes[p]],
            fmt::format("lossy priority {} shares the queue of lossless priority {}, which a pause stops", q, p),
            "give every priority a traffic class of its own");
      if (host.buffers[p] && host.buffers[p] == host.buffers[q])
        context.warning("L2", host.buffer_place,
                        fmt::format("lossy priority {} fills the receive buffer of lossless priority {}", q, p),
                        "give lossless priorities a buffer of their own");
    }
  }
}

void check_bandwidths(const HostSettings& host, PrioritySet pfc, Context& context) {
  unsigned sum = 0;
  bool weighted = false;
  for (std::size_t tc = 0; tc < kPriorities; ++tc) {
    if (host.algorithms[tc] == "strict" && host.percents[tc].value_or(0) != 0)
      context.warning("L9", host.bandwidth_place, fmt::format("traffic class {} is strict and has a bandwidth", tc),
                      "give strict classes 0");
    if (host.algorithms[tc] != "ets") continue;
    weighted = true;
    sum += std::min(host.percents[tc].value_or(0), 1000u);
  }
  if (weighted && sum != 100)
    context.error("L9", host.bandwidth_place, fmt::format("the bandwidths of its classes sum up to {} percent", sum),
                  "let them be 100");
  for (std::size_t p = 0; p < kPriorities; ++p)
    if (has(pfc, p) && host.classes[p] && host.algorithms[*host.classes[p]] == "vendor")
      context.warning("L9", host.algorithm_places[*host.classes[p]],
                      fmt::format("lossless priority {} is served as the vendor likes, in one group with others", p),
                      "say strict or ets");
}

// A lossless priority's buffer takes what is on the cable when its pause frame leaves, even at 40 Gbit/s.
void check_buffers(const HostSettings& host, PrioritySet pfc, Context& context) {
  std::uint64_t sum = 0;
  for (const auto& size : host.buffer_sizes) sum += std::min<std::uint64_t>(size.value_or(0), 1ull << 40);
  if (host.total_size && sum > *host.total_size)
    context.error("L6", host.size_place, fmt::format("the buffers sum up to {} bytes of {}", sum, *host.total_size),
                  "make them smaller");
  const Port& port = context.device().ports.front();
  const auto least =
      headroom::nic_headroom(kSlowest, std::min(port.cable_metres.value_or(0), 100'000.0),
                             Bytes(std::clamp<std::uint64_t>(port.mtu.value_or(kShortestMtu), kShortestMtu, 65535)));
  for (std::size_t p = 0; p < kPriorities; ++p) {
    if (!has(pfc, p) || !host.buffers[p] || *host.buffers[p] >= kPriorities || !least.ok()) continue;
    const auto size = host.buffer_sizes[*host.buffers[p]];
    if (size && *size < least->value)
      context.error("L6", host.size_place,
                    fmt::format("lossless priority {} has {} bytes in buffer {}, but needs at least {}", p, *size,
                                *host.buffers[p], least->value),
                    "make its buffer larger");
  }
}

// What RoCE and its notifications are marked with, against what their priorities are.
void check_marks(const HostSettings& host, PrioritySet pfc, Context& context) {
  for (std::size_t p = 0; p < kPriorities; ++p)
    if (has(pfc, p) && !host.silent[p].empty())
      context.warning("L10", host.silent[p], "congestion control is off for this lossless priority", "write 1");
  const Map* const dscps = context.device().ports.front().dscp_to_class;
  if (dscps == nullptr) return;
  const auto lossless = [&](std::uint8_t dscp) { return dscps->said[dscp] && has(pfc, *dscps->to[dscp]); };
  if (host.notifications && lossless(*host.notifications))
    context.warning(
        "L10", host.notifications_place,
        fmt::format("congestion notifications have DSCP {}, whose priority PFC can stop", *host.notifications),
        "write the fabric's DSCP of notifications, such as 48");
  if (host.roce && dscps->said[*host.roce] && !lossless(*host.roce))
    context.warning("L10", host.tos_place,
                    fmt::format("RoCE has DSCP {} by default, which is in a priority without PFC", *host.roce),
                    "write the TOS of a lossless class");
}

}  // namespace

bool read_host_file(const Line& line, HostSettings& host, Context& context) {
  const std::string place = context.place(line);
  const std::size_t colon = line.text.find(':', line.text.rfind('/'));
  if (colon == std::string_view::npos) return false;
  const std::string_view file = line.text.substr(0, colon), value = trimmed(line.text.substr(colon + 1));
  const std::string_view digits = value.substr(std::min(value.find_last_not_of("0123456789") + 1, value.size()));
  const auto number = lint::number(digits);
  const std::string_view name = file.substr(file.rfind('/') + 1);
  Port& port = context.device().ports.front();
  if (name == "mtu" && number) {
    port.mtu = number;
    port.mtu_place = place;
  } else if (name == "traffic_class") {
    if (number.value_or(0) != 0)
      context.error("L10", place, "this overrides the traffic class of every queue pair: all classes become one",
                    "write -1 or 0, and let applications choose");
  } else if (name == "default_roce_tos") {
    if (number && (*number & 3) != 2)
      context.warning("L10", place, "the ECN bits of this TOS are not ECT(0): switches drop what they should mark",
                      fmt::format("write {}", (*number & 0xfc) | 2));
    if (number && *number <= 0xff && *number >= 4) host.roce = static_cast<std::uint8_t>(*number / 4);
    host.tos_place = place;
  } else if (file.find("/ecn/") != std::string_view::npos && file.find("/enable/") != std::string_view::npos) {
    const auto priority = small_number(name, 7);
    if (!priority || !number) return false;
    if (*number == 0) host.silent[*priority] = place;
  } else if (name == "trust") {
    if (value != "dscp") host.untrusted = place;
  } else if (name == "cnp_dscp") {
    host.notifications = small_number(digits, 63);
    host.notifications_place = place;
    if (!host.notifications) context.error("L10", place, "no DSCP", "write 0 to 63");
  } else {
    return name == "cnp_802p_prio" || name == "min_time_between_cnps";
  }
  return true;
}

void add_classes(const HostSettings& host, Device& device) {
  device.strict_first = true;
  Port& port = device.ports.front();
  for (std::size_t tc = 0; tc < kPriorities; ++tc) {
    if (!host.algorithms[tc].empty()) {
      Scheduling& scheduling = port.queues[tc].scheduling.emplace();
      scheduling.strict = host.algorithms[tc] == "strict";
      if (host.algorithms[tc] == "ets") scheduling.weight = host.percents[tc];
    }
    if (!host.rates[tc]) continue;
    Shaper& shaper = port.queues[tc].shaper.emplace();
    if (host.rates[tc]->value != 0) shaper.rate = host.rates[tc];
  }
  const auto said = [](const auto& cls) { return cls.has_value(); };
  if (!std::any_of(host.classes.begin(), host.classes.end(), said)) return;
  device.maps.push_back(std::make_unique<Map>());
  for (std::size_t p = 0; p < kPriorities; ++p)
    if (host.classes[p]) device.maps.back()->to[p] = static_cast<std::uint8_t>(*host.classes[p]);
  port.class_to_queue = device.maps.back().get();
}

void check_host(const HostSettings& host, Context& context) {
  const PrioritySet pfc = context.device().ports.front().pfc.value_or(0);
  check_shared(host, pfc, context);
  check_bandwidths(host, pfc, context);
  check_buffers(host, pfc, context);
  check_marks(host, pfc, context);
}

}  // namespace tensorlane::lint
