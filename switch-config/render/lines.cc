#include "switch-config/render/lines.h"

#include <algorithm>

#include <fmt/format.h>

namespace tensorlane::switches {

namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool has_form(std::string_view name, std::string_view form) {
  for (const char expected : form) {
    if (expected == '#') {
      const std::size_t digits =
          static_cast<std::size_t>(std::find_if_not(name.begin(), name.end(), is_digit) - name.begin());
      if (digits == 0) return false;
      name.remove_prefix(digits);
    } else if (name.empty() || name.front() != expected) {
      return false;
    } else {
      name.remove_prefix(1);
    }
  }
  return name.empty();
}

template <typename Map>
std::vector<std::size_t> points_of(const Map& map, std::size_t queue) {
  std::vector<std::size_t> points;
  for (std::size_t i = 0; i < map.size(); ++i) {
    if (map[i] == queue) points.push_back(i);
  }
  return points;
}

Status error(const DeviceQos& device, std::string what, std::string fix) {
  return Status(Code::kInvalidArgument, std::move(what), fmt::format("device '{}'", device.name), std::move(fix));
}

}  // namespace

Status check_ports(const DeviceQos& device, std::string_view nos, std::initializer_list<std::string_view> forms) {
  for (const DevicePort& port : device.ports) {
    if (std::any_of(forms.begin(), forms.end(), [&](std::string_view form) { return has_form(port.name, form); }))
      continue;
    std::string known;
    for (const std::string_view form : forms) known += fmt::format("{}{}", known.empty() ? "" : ", ", form);
    return error(device, fmt::format("{} has no port '{}'", nos, port.name),
                 fmt::format("expected {}, where # is a number", known));
  }
  return Status::ok_status();
}

Status check_mtu(const DeviceQos& device, std::string_view nos, std::uint32_t most) {
  for (const PortKind& kind : device.kinds) {
    if (kind.mtu > most)
      return error(device, fmt::format("a port with an MTU of {}", kind.mtu),
                   fmt::format("{} takes at most {}", nos, most));
  }
  return Status::ok_status();
}

std::vector<std::size_t> dscps_of(const DeviceQos& device, std::size_t queue) {
  return points_of(device.queue_of_dscp, queue);
}
std::vector<std::size_t> pcps_of(const DeviceQos& device, std::size_t queue) {
  return points_of(device.queue_of_pcp, queue);
}

std::vector<std::size_t> class_dscps(const DeviceQos& device) {
  std::vector<std::size_t> ours;
  for (std::size_t dscp = 0; dscp < kDscps; ++dscp) {
    if (device.is_class_dscp(dscp)) ours.push_back(dscp);
  }
  return ours;
}

std::string joined(const std::vector<std::size_t>& numbers, std::string_view separator) {
  std::string text;
  for (const std::size_t number : numbers) text += fmt::format("{}{}", text.empty() ? "" : separator, number);
  return text;
}

bool has_untrusted(const DeviceQos& device) {
  return std::any_of(device.kinds.begin(), device.kinds.end(), [](const PortKind& kind) { return !kind.trusted; });
}

unsigned lossless_at(const DeviceQos& device, const PortKind& kind) {
  return kind.trusted ? device.lossless_mask() : 0;
}

std::vector<std::size_t> lossless_queues(const DeviceQos& device) {
  std::vector<std::size_t> queues;
  for (std::size_t q = 0; q < kQueues; ++q) {
    if (device.queues[q].lossless) queues.push_back(q);
  }
  return queues;
}

std::array<unsigned, kQueues> used_weights(const DeviceQos& device) {
  std::array<unsigned, kQueues> weights{};
  unsigned left = 100;
  for (std::size_t q = 0; q < kQueues; ++q) {
    const Queue& queue = device.queues[q];
    if (!queue.strict && !queue.name.empty()) left -= weights[q] = queue.weight;
  }
  *std::max_element(weights.begin(), weights.end()) += left;
  return weights;
}

Status refuse_estimate(const DeviceQos& device, const PortKind& kind) {
  if (!kind.headroom || kind.headroom->source != PortKind::Headroom::Source::kEstimate ||
      device.headroom.accept_estimate)
    return Status::ok_status();
  return error(device, "headroom of an unknown ASIC could only be estimated",
               "name the vendor's table as 'lookup' in 'headroom' of 'qos', or say 'accept_estimate: true' there");
}

std::string describe(const PortKind& kind) {
  return fmt::format("{}, {}, MTU {}", fabric::format_rate(kind.speed),
                     kind.trusted ? fmt::format("cable {:g} m", kind.cable_metres) : "no link", kind.mtu);
}

std::string heading(const DeviceQos& device, std::string_view mark, std::string_view what) {
  std::string text = fmt::format("{} {}: {}\n", mark, device.name, what);
  for (const std::string& warning : device.warnings) text += fmt::format("{} Warning: {}\n", mark, warning);
  for (const std::string& note : device.notes) text += fmt::format("{} {}\n", mark, note);
  return text;
}

std::uint64_t milliseconds_of(Duration duration) {
  return static_cast<std::uint64_t>(duration.value) / 1'000'000;
}

}  // namespace tensorlane::switches
