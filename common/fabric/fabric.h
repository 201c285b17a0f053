// fabric.yaml: hosts, switches, links and classes. The daemon, the switch tool, the lab and the planner read it through this library only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"

namespace tensorlane::fabric {

// One traffic class: how it is marked and served.
struct TrafficClass {
  std::string name;             // "urgent"
  std::uint8_t dscp = 0;        // 0..63
  std::uint8_t pcp = 0;         // 0..7
  std::uint8_t service_level = 0;  // RoCE SL, 0..15
  bool lossless = false;
  std::uint8_t rank = 0;        // order of service; 0 is served first. Data classes: ClassId = position by rank
  std::optional<Bytes> window;  // in flight per NIC; unset: from the link speed
};

// The classes of a fabric: 2 to 7 data classes (1 for a job without priorities is the daemon's choice, not the file's) and the control class.
struct ClassTable {
  std::vector<TrafficClass> data;  // by ClassId, most urgent first
  TrafficClass control;
  std::vector<double> thresholds;  // data.size() - 1 urgencies, descending: class i takes urgency >= thresholds[i]
};

enum class Preset { kGreenfield, kBrownfield };
ClassTable preset(Preset preset);

struct Host {
  std::string name;
  std::map<std::string, std::string> addresses;  // transport -> address: "tcp": "10.77.0.1"
  std::uint16_t control_port = 7100;              // ZeroMQ
  std::uint16_t data_port = 7110;                 // first of one listener per class, control first: data_port + 0 is control, data_port + 1 + ClassId
  std::string public_key;                         // CURVE, Z85, 40 characters; empty only in a fabric of one host
  int line = 0;                                   // in the file, for messages
};

struct Switch {
  std::string name;
  int line = 0;
};

// Between a host or switch and a switch.
struct Link {
  std::string from, to;
  BitsPerSecond speed{};
  double cable_metres = 0;
  std::uint32_t mtu = 1500;
  std::optional<Bytes> buffer;  // of the switch's egress port towards `from`; for the lab
  int line = 0;
};

struct Fabric {
  std::string path;  // for messages
  std::vector<Host> hosts;
  std::vector<Switch> switches;
  std::vector<Link> links;
  ClassTable classes;

  const Host* find_host(std::string_view name) const;
  // By name or by any of its addresses: what MASTER_ADDR may hold.
  const Host* find_host_by_name_or_address(std::string_view text) const;
  // Slowest of the host's own links; unset when none is described (loopback).
  std::optional<BitsPerSecond> link_speed(const Host& host) const;
};

// Reads and checks a file. Errors are kInvalidArgument with where = "FILE:LINE" and fix = what was expected, e.g.
//   unknown key 'dcsp' in class 'urgent': fabric.yaml:12: expected one of name, dscp, pcp, service_level, lossless, rank, window
Result<Fabric> load(const std::string& path);
Result<Fabric> parse(const std::string& text, const std::string& path);

// The fabric as YAML that parse() reads back to the same value.
std::string to_yaml(const Fabric& fabric);

// Units as people write them: "500 Mbit/s", "10Gbit/s", "100G"; "256 KiB", "4MiB". Errors say what was expected.
Result<BitsPerSecond> parse_rate(std::string_view text);
Result<Bytes> parse_bytes(std::string_view text);

// The class that an urgency falls into under the table's thresholds.
ClassId classify(const ClassTable& table, double urgency);

// How much of a class may be in flight on a link: the class's own window, else what the link carries in 2 ms, at least 256 KiB and at most 4 MiB.
Bytes window(const TrafficClass& cls, std::optional<BitsPerSecond> link);

}  // namespace tensorlane::fabric
