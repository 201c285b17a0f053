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

}  // namespace

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
}

}  // namespace tensorlane::lint
