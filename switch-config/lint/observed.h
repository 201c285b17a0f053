// What a configuration says about QoS, whoever wrote it and for whatever device: the form that rules look at. Parsers
// fill it. Everything may be unknown, and what is unknown breaks no rule.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/units.h"
#include "switch-config/findings/findings.h"
#include "switch-config/headroom/headroom.h"

namespace tensorlane::lint {

inline constexpr std::size_t kPriorities = 8;

// Places are texts that a reader of the configuration finds again: "PORT_QOS_MAP|Ethernet0|pfc_enable".

// From small numbers (DSCP, PCP, traffic class, PFC priority) to small numbers.
struct Map {
  std::string place;
  std::size_t size = kPriorities;  // of what it maps: 64 for DSCPs
  std::array<std::optional<std::uint8_t>, 64> to{};
  // Where single entries have places of their own: lines of a configuration.
  std::map<std::size_t, std::string> places{};
  // What the configuration says; the rest of `to` is the platform's preset, where `has_preset`.
  std::bitset<64> said{};
  bool has_preset = false;

  std::string entry(std::size_t from) const {
    const auto found = places.find(from);
    return found != places.end() ? found->second : place + "|" + std::to_string(from);
  }
};

struct Scheduling {
  bool strict = false;
  std::optional<unsigned> weight{};
  std::optional<unsigned> level{};  // of a strict queue, where the platform counts them; 1 is served first
};

// What a queue never exceeds.
struct Shaper {
  std::optional<double> percent{};  // of the port's speed
  std::optional<BitsPerSecond> rate{};
};

// Marking, or dropping where `marks` is false, between two fills of a queue.
struct Ecn {
  std::string place;
  bool marks = false;
  bool drops = false;
  std::optional<std::uint64_t> kmin, kmax;
  std::optional<unsigned> percent;
  std::string percent_place{}, marks_place{};  // where they are not `place`
  const char* unit = "bytes";                  // of kmin and kmax
};

struct Queue {
  std::string place;
  std::optional<Scheduling> scheduling;
  std::optional<Shaper> shaper;
  const Ecn* ecn = nullptr;
  bool of_notifications = false;  // as the configuration's name for it says
  // Which memory it takes where packets leave, as the names of SONiC's profiles and pools say.
  std::string buffer_place;
  std::optional<bool> lossless_buffer;
};

// What a priority group has in the ingress buffer.
struct Buffer {
  enum class Kind {
    kUnknown,
    kLossy,
    kLossless,
    kComputed
  };  // kComputed: lossless, by the device from speed and cable
  Kind kind = Kind::kUnknown;
  std::string place;    // where the group gets it
  std::string profile;  // where its numbers are
  std::optional<Bytes> xoff;
  std::optional<Bytes> reserved;  // for this group alone
  std::string pool;               // which the reserved bytes are taken from
  // For which link it was made, where its name says so.
  std::optional<BitsPerSecond> made_for_speed;
  std::optional<double> made_for_metres;
  std::optional<Bytes> stops_at;  // the most that a queue may hold before the peer is stopped, in an empty buffer

  bool lossless() const { return kind == Kind::kLossless || kind == Kind::kComputed; }
};

struct Watchdog {
  std::string place;
  std::optional<Duration> detection, restoration;
};

// Bit p: priority p.
using PrioritySet = std::uint8_t;
constexpr bool has(PrioritySet set, std::size_t priority) {
  return ((set >> priority) & 1) != 0;
}

struct Port {
  std::string name;
  const Map* dscp_to_class = nullptr;
  const Map* pcp_to_class = nullptr;
  const Map* class_to_queue = nullptr;
  const Map* class_to_group = nullptr;
  const Map* pfc_to_queue = nullptr;
  // By the number of the queue or group. Only some platforms number the priority of pause frames otherwise: on_wire.
  std::optional<PrioritySet> pfc, watched;
  std::array<std::uint8_t, kPriorities> on_wire{0, 1, 2, 3, 4, 5, 6, 7};
  std::string pfc_place, watched_place;
  std::string classes_place;  // which says what is lossless, where it is not pfc_place
  std::string dscp_place;     // which binds dscp_to_class, or would
  std::array<Queue, kPriorities> queues;
  std::array<Buffer, kPriorities> buffers;
  std::optional<Watchdog> watchdog;
  std::optional<BitsPerSecond> speed;
  std::optional<unsigned> lanes;
  std::optional<double> cable_metres;
  std::string cable_place;
  std::optional<std::uint64_t> mtu;
  std::string mtu_place;
  std::string peer_device, peer_port;  // where the configuration names them

  // The priorities in pause frames.
  std::optional<PrioritySet> pfc_on_wire() const {
    if (!pfc) return std::nullopt;
    PrioritySet set = 0;
    for (std::size_t i = 0; i < kPriorities; ++i)
      if (has(*pfc, i)) set = static_cast<PrioritySet>(set | 1u << on_wire[i]);
    return set;
  }
};

struct Pool {
  std::string place;
  Bytes size;
};

struct Device {
  std::string name;
  std::string place;          // of what has no better one: the file
  std::string language;       // of its configuration: "sonic", "eos"
  std::string form;           // of the language where it is not the usual one: "qos_features.conf"
  bool is_host = false;       // its one port is a NIC's
  bool strict_first = false;  // strict queues go before weighted ones, whatever their numbers are
  // What the ports point to. Moved with the device, never copied.
  std::vector<std::unique_ptr<Map>> maps;
  std::vector<std::unique_ptr<Ecn>> ecns;
  std::vector<Port> ports;
  bool lists_ports = true;            // false: ports are those that rows about QoS name
  std::map<std::string, Pool> pools;  // by Buffer::pool; those of a known size
  std::optional<headroom::Asic> asic;
  std::optional<bool> computes_headroom;  // from speed and cable, as SONiC's dynamic buffer model does
  std::optional<std::uint64_t> lossless_mtu;
  std::optional<unsigned> small_packet_percent;
  bool shared_headroom = false;
  bool has_watchdogs = false;  // some port has one
  bool names_watched = false;  // some port says which priorities it looks at
  std::optional<Duration> watchdog_poll;
  std::string watchdog_poll_place;
};

}  // namespace tensorlane::lint
