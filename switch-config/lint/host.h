// Inside the linter: what is wrong with a NIC whatever the fabric does, however its settings were printed.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "switch-config/lint/text.h"

namespace tensorlane::lint {

struct HostSettings {
  // By traffic class: "ets", "strict", "vendor"; shares in percent; where a class is said.
  std::array<std::string, kPriorities> algorithms;
  std::array<std::optional<unsigned>, kPriorities> percents;
  std::array<std::string, kPriorities> class_places, algorithm_places;
  std::string bandwidth_place;
  std::array<std::optional<BitsPerSecond>, kPriorities> rates;  // of what is limited; 0: it is not
  // By priority: its traffic class and its receive buffer.
  std::array<std::optional<unsigned>, kPriorities> classes, buffers;
  std::string buffer_place;
  // By receive buffer, bytes.
  std::array<std::optional<std::uint64_t>, kPriorities> buffer_sizes;
  std::string size_place;
  std::optional<std::uint64_t> total_size;
  // Of files in /sys, where each is said.
  std::string untrusted, notifications_place, tos_place;
  std::array<std::string, kPriorities> silent;      // no congestion control for the priority
  std::optional<std::uint8_t> notifications, roce;  // DSCPs
};

// Takes "/sys/class/infiniband/mlx5_0/tc/1/traffic_class:Global tclass=106", as `grep . FILE...` prints it. False for
// what it does not know.
bool read_host_file(const Line& line, HostSettings& host, Context& context);
// What the NIC, whose one port is the device's, does with each traffic class, where its tool said so.
void add_classes(const HostSettings& host, Device& device);

// Rules L2, L6 and L9 on the NIC, whose one port is the device's.
void check_host(const HostSettings& host, Context& context);

}  // namespace tensorlane::lint
