// What one switch or NIC is to do with traffic, in no vendor's language: the policy makes it of a fabric, and
// renderers, the linter, diff and trace speak of nothing else.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/fabric/fabric.h"

namespace tensorlane::switches {

inline constexpr std::size_t kQueues = 8, kDscps = 64, kPcps = 8;

// A traffic class of a device. Its number is at once the internal traffic class, the queue, the priority group and the
// PFC priority: platforms rank strict queues by number, so that a larger one is served first.
struct Queue {
  std::string name;       // of the class; empty where no traffic is mapped to the queue
  bool strict = false;    // before all weighted queues
  unsigned weight = 0;    // percent of what strict queues leave; 0 for strict ones; together 100
  unsigned shaper = 0;    // percent of the port's speed that the queue never exceeds; 0: unlimited, only unused queues
  bool lossless = false;  // PFC
  std::uint8_t dscp = 0;  // the class's own mark; without meaning for "default"
};

// What ports of one kind have in common.
struct PortKind {
  BitsPerSecond speed{};
  unsigned lanes = 0;  // 0: not said
  double cable_metres = 0;
  std::uint32_t mtu = 0;
  bool trusted = true;  // leads to a host or switch of the fabric; else all traffic is default and PFC is off
  std::array<std::optional<fabric::EcnThresholds>, kQueues> ecn;
  struct Headroom {
    enum class Source : std::uint8_t { kFormula, kTable, kEstimate };  // the vendor's, or by bit times
    Bytes xoff, xon, size;
    Source source = Source::kFormula;
    Bytes least;        // what it is at least: of an estimate its lower bound, else xoff
    int threshold = 0;  // the exponent of alpha: how much of the free shared memory the queue may take
    Bytes xon_offset;   // 0: none
  };
  std::optional<Headroom> headroom;  // of every lossless queue; unset where none is
};

struct DevicePort {
  std::string name;
  std::size_t kind = 0;         // in DeviceQos::kinds
  std::string peer, peer_port;  // empty where no link is described
};

struct DeviceQos {
  std::string name;
  bool is_host = false;
  fabric::Platform platform;  // with what is known about its name filled in
  std::string release;
  std::array<Queue, kQueues> queues;
  std::array<std::uint8_t, kDscps> queue_of_dscp{};
  std::array<std::uint8_t, kPcps> queue_of_pcp{};
  std::vector<PortKind> kinds;
  std::vector<DevicePort> ports;  // in the order of the file
  fabric::HeadroomOptions headroom;
  fabric::Watchdog watchdog;
  std::uint8_t cnp_dscp = 0;
  std::uint8_t cnp_queue = 0;
  std::uint8_t bulk_dscp = 0;             // of the least urgent class: what NICs use unless told otherwise
  std::vector<std::string> rdma_devices;  // of a host, by port; empty where not said
  // For the reader of the configuration: plain text, one line each. Warnings are what to check before it is used.
  std::vector<std::string> notes, warnings;

  // Marks that are ours alone: from strangers they are not let through. CNP's is also that of routing protocols.
  bool is_class_dscp(std::size_t dscp) const { return queue_of_dscp[dscp] != 0 && dscp != cnp_dscp; }

  // Bit i: priority i is lossless.
  unsigned lossless_mask() const {
    unsigned mask = 0;
    for (std::size_t i = 0; i < kQueues; ++i) mask |= (queues[i].lossless ? 1u : 0u) << i;
    return mask;
  }
};

}  // namespace tensorlane::switches
