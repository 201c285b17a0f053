// fabric.yaml: hosts, switches, links and classes. The daemon, the switch tool, the lab and the planner read it through
// this library only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/data_protection.h"
#include "common/base/status.h"
#include "common/base/units.h"
#include "common/fabric/nccl.h"
#include "common/fabric/network.h"
#include "common/fabric/urgencies.h"

namespace tensorlane::fabric {

// One traffic class: how it is marked and served.
struct TrafficClass {
  std::string name;                // "urgent"
  std::uint8_t dscp = 0;           // 0..63
  std::uint8_t pcp = 0;            // 0..7
  std::uint8_t service_level = 0;  // RoCE SL, 0..15
  bool lossless = false;
  std::uint8_t rank = 0;  // order of service; 0 is served first. Data classes: ClassId = position by rank. Control,
                          // always before data, has 0
  std::optional<Bytes> window;  // in flight per NIC; unset: from the link speed
};

// What the file may describe, the control class beside: there are 8 PCPs.
inline constexpr std::size_t kMinFileClasses = 2;
inline constexpr std::size_t kMaxFileClasses = 7;

// The classes of a fabric: 2 to 7 data classes (1 for a job without priorities is the daemon's choice, not the file's)
// and the control class.
struct ClassTable {
  std::vector<TrafficClass> data;  // by ClassId, most urgent first
  TrafficClass control;
  std::vector<double> thresholds;  // data.size() - 1 urgencies, descending: class i takes urgency >= thresholds[i]
};

enum class Preset { kGreenfield, kBrownfield };
ClassTable preset(Preset preset);

struct Host {
  std::string name;
  // transport -> address of each rail: "tcp": {"10.77.0.1", "10.77.1.1"}. "tcp" is always there, and every other
  // transport has as many rails, 1 to kMaxRails.
  std::map<std::string, std::vector<std::string>> addresses;
  std::uint16_t control_port = 7100;  // ZeroMQ, at the first rail's tcp address
  std::uint16_t data_port =
      7110;  // of every rail: first of one listener per class, control first: data_port is control, + 1 + ClassId
  std::string public_key;                 // CURVE, Z85, 40 characters; empty only in a fabric of one host
  std::vector<std::string> rdma_devices;  // "mlx5_0" of each rail; empty where not said
  std::optional<Duration> retry_budget;   // unset: the fabric's
  int line = 0;                           // in the file, for messages

  std::size_t rails() const { return addresses.at("tcp").size(); }
  // Null where the host has no such transport.
  const std::string* find_address(const std::string& transport, RailIndex rail = RailIndex(0)) const;
  const std::string& tcp_address(RailIndex rail = RailIndex(0)) const { return addresses.at("tcp")[rail.value]; }
};

struct Switch {
  std::string name;
  std::optional<Nos> nos;
  std::string release;  // of the NOS; empty: any
  Platform platform;
  Role role = Role::kUnset;
  std::vector<Port> ports;             // empty: those that links name
  std::vector<std::string> addresses;  // numeric; by which it answers probes
  int line = 0;
};

// Between a host or switch and a switch.
struct Link {
  std::string from, to;
  std::string from_port, to_port;  // empty where not said; no port is in two links
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
  DataProtection data_protection = DataProtection::kNone;  // between hosts
  Qos qos;
  Routing routing;
  Urgencies urgencies;
  NcclPolicy nccl;

  const Host* find_host(std::string_view name) const;
  const Switch* find_switch(std::string_view name) const;
  // By name or by any of its addresses: what MASTER_ADDR may hold.
  const Host* find_host_by_name_or_address(std::string_view text) const;
  // Of a rail: the host's links are its rails, in the order of the file, where it has as many. Else the slowest of its
  // links; unset when none is described (loopback).
  std::optional<BitsPerSecond> link_speed(const Host& host, RailIndex rail) const;
  // The slowest of the host's links; unset when none is described.
  std::optional<BitsPerSecond> link_speed(const Host& host) const;
  // The slowest link that a slice may meet, if any link of a host is described.
  std::optional<BitsPerSecond> slowest_link() const;
};

// Reads and checks a file. Errors are kInvalidArgument with where = "FILE:LINE" and fix = what was expected, e.g.
//   unknown key 'dcsp' in class 'urgent': fabric.yaml:12: expected one of name, dscp, pcp, service_level, lossless,
//   rank, window
//
// Daemons of several hosts must have public keys. The lab, which makes its own, the planner and the switch tool read
// with kOptional.
enum class Keys { kRequired, kOptional };
//
// A name, address or port of a file may be a pattern that stands for many: see pattern.h and README.md. A file holds at
// most kMaxFileSize bytes and kMaxItems hosts, switches, ports or links.
inline constexpr std::size_t kMaxFileSize = std::size_t{16} << 20;
inline constexpr std::size_t kMaxItems = 65535;
Result<Fabric> load(const std::string& path, Keys keys = Keys::kRequired);
Result<Fabric> parse(const std::string& text, const std::string& path, Keys keys = Keys::kRequired);

// Resolves a host's addresses. Apart from load(), because it may ask DNS: the daemon calls it at start for its own
// host, and `--check-config` for all. InvalidArgument, where = "FILE:LINE" of the host, for an address that is neither
// IPv4 nor IPv6 nor a name that resolves.
Status check_addresses(const Fabric& fabric, const Host& host);

// An address as numbers, IPv4 or IPv6: "10.0.0.4" of "gpu04.cluster". May ask DNS, for seconds. NotFound in
// the resolver's words.
Result<std::string> resolve_address(const std::string& address);

// The fabric as YAML that parse() reads back to the same value.
std::string to_yaml(const Fabric& fabric);

// Units as people write them: "500 Mbit/s", "10Gbit/s", "100G"; "256 KiB", "4MiB", "1500" (bytes). Never zero. Errors
// are kInvalidArgument without a place: what = "'500 MB' is not a rate", fix = what was expected.
Result<BitsPerSecond> parse_rate(std::string_view text);
Result<Bytes> parse_bytes(std::string_view text);
// "10 s", "250 ms", "20 us".
Result<Duration> parse_duration(std::string_view text);
// The same, for people to read and for the parsers above to read back exactly: "500 Mbit/s", "512 KiB".
std::string format_rate(BitsPerSecond rate);
std::string format_bytes(Bytes bytes);

// K - 1 thresholds that divide [0, 1] evenly among K classes: 0.5 for two.
std::vector<double> even_thresholds(std::size_t classes);

// How much of a class may be in flight on a link: the class's own window, else what the link carries in 2 ms, at least
// 256 KiB and at most 4 MiB; 4 MiB where no link is described (loopback).
Bytes window(const TrafficClass& cls, std::optional<BitsPerSecond> link);

}  // namespace tensorlane::fabric
