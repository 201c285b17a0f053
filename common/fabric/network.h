// What fabric.yaml says about switches, cables and the service of classes beyond names and speeds: for the switch tool
// and the lab. The daemon does not need it. Everything is optional; unset is the choice of switch-config/policy.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/units.h"

namespace tensorlane::fabric {

// The operating system of a switch, which decides how its configuration is written.
enum class Nos : std::uint8_t { kSonic, kCumulus, kEos, kNxos, kJunos, kOnyx, kOpenConfig, kLinux };
inline constexpr std::array<std::string_view, 8> kNosNames{"sonic", "cumulus", "eos",        "nxos",
                                                           "junos", "onyx",    "openconfig", "linux"};
constexpr std::string_view nos_name(Nos nos) {
  return kNosNames[static_cast<std::size_t>(nos)];
}

// The level of a switch in a Clos, from the hosts upwards; up-down routing is defined by it.
enum class Role : std::uint8_t { kUnset, kLeaf, kSpine, kCore };
inline constexpr std::array<std::string_view, 4> kRoleNames{"", "leaf", "spine", "core"};

// What a switch is made of: the name of a model that the switch tool knows, numbers, or both (numbers win).
struct Platform {
  std::string name;                      // "SN5600"; empty where numbers describe it
  std::string asic;                      // "spectrum4"
  std::optional<Bytes> buffer;           // packet memory that all ports share
  std::optional<Bytes> port_headroom;    // less than this all lossless classes of a port may reserve together
  std::optional<std::uint8_t> queues;    // of a port, 1..8
  std::optional<std::uint8_t> lossless;  // how many classes of a port can be lossless, 0..8
  std::string evidence;                  // who says so; without it `lossless` allows two at most
};

struct Port {
  std::string name;
  std::optional<BitsPerSecond> speed;
  std::uint8_t lanes = 0;  // 0: not said
  int line = 0;
};

// Where ECN marks: nothing below kmin, up to pmax at kmax.
struct EcnThresholds {
  Bytes kmin, kmax;  // kmin < kmax
  std::uint8_t pmax_percent = 100;
  bool operator==(const EcnThresholds&) const = default;
};

// How one class is served.
struct ClassService {
  std::optional<bool> strict;                  // before all weighted classes; else weighted
  std::optional<std::uint8_t> shaper_percent;  // 1..100, of the port's speed
  std::optional<std::uint8_t> weight_percent;  // 1..100, among weighted classes
  std::optional<EcnThresholds> ecn;
  int line = 0;
};

// What the headroom of lossless classes is computed from.
struct HeadroomOptions {
  enum class Formula : std::uint8_t { kCurrent, kOlder };
  Formula formula = Formula::kCurrent;
  std::optional<std::uint32_t> port_mtu;    // bytes; unset: the link's
  std::uint32_t lossless_mtu = 4096;        // largest packet of a lossless class
  std::uint8_t small_packets_percent = 50;  // of the packets of a lossless class, by number
  bool shared_headroom = false;
  std::string lookup;            // a pg_profile_lookup.ini to take rows from instead; relative to fabric.yaml
  bool accept_estimate = false;  // where the ASIC is unknown and there is no table
};

struct Watchdog {
  Duration poll = milliseconds(100);
  Duration detection = milliseconds(200);
  Duration restoration = milliseconds(200);
  enum class Action : std::uint8_t { kDrop, kForward };
  Action action = Action::kDrop;
};

struct Qos {
  // By the name of a class of the file, "control", "cnp" (congestion notifications) or "default" (all other traffic).
  std::map<std::string, ClassService, std::less<>> services;
  std::uint8_t cnp_dscp = 48;           // where NICs send it unless told otherwise
  std::optional<std::uint8_t> cnp_pcp;  // unset: the highest free one below the most urgent class
  HeadroomOptions headroom;
  Watchdog watchdog;
  Duration head_of_line_lifetime = seconds(1);  // how long a switch keeps the first packet of a queue
  Duration retry_budget = seconds(2);           // how long a NIC resends before it gives a connection up
  int line = 0;                                 // 0: the file has no such section
};

// Which ways traffic takes.
struct Routing {
  bool up_down = true;  // all shortest ways that go up and then down in the Clos; else only `routes`
  struct Route {
    std::vector<std::string> hops;  // host, switches, host
    int line = 0;
  };
  std::vector<Route> routes;
  // Switches of one VLAN each, in which a lossless packet with an unknown address goes out of every port.
  std::vector<Route> flooding;
  int line = 0;  // 0: the file has no such section
};

}  // namespace tensorlane::fabric
