// A network of hosts, links and switches for planning: lossless, with a queue per level of service at every port. It
// carries lengths and headers, never bytes, and moves trains of packets: one transport operation, or a part of it, that
// passes a port in one piece. The first packet of a train is forwarded while the last is still being sent, as switches
// of small packets do, so that a way of equal links takes a train's length once.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/protocol/frame.h"
#include "simulator/clock/event_queue.h"
#include "simulator/network/packet.h"
#include "simulator/network/topology.h"

namespace tensorlane::simulator {

enum class Discipline : std::uint8_t {
  kFifo,  // one queue
  // A queue per level, the first that is not empty is served. Control never waits: it is one packet at a time.
  kStrict,
  kWeighted,  // a queue per level, served in turn by deficits (Shreedhar and Varghese, 1995), but control first
};

// Priority-based flow control (IEEE 802.1Qbb): when more than `pause` of a level that came in by one link waits in a
// switch, the switch stops that level at the link's other end until no more than `resume` waits.
struct PauseThresholds {
  Bytes pause, resume;
};

struct FabricNetworkOptions {
  Discipline discipline = Discipline::kStrict;
  std::array<std::uint32_t, kLevels> weights{};  // kWeighted: bytes per turn
  Bytes train = kMaxOperation;                   // operations are cut into trains of at most this
  std::uint64_t header_bytes = 64;               // of an operation
  double goodput = 1;                            // the share of a link's rate that operations get of packets' headers
  std::optional<PauseThresholds> flow_control;   // none: switches hold whatever windows allow
};

// One transport operation.
struct Message {
  HostIndex from, to;
  std::uint8_t level = 0;
  std::uint8_t job = 0;
  protocol::FrameHeader header;
  std::uint64_t token = 0;
};

// A host's side of the network.
class FabricSink {
 public:
  virtual ~FabricSink() = default;
  virtual void on_delivered(const Message& message) = 0;  // whole; in order per (sender, level)
  // One way's delay later, with the sender. Not of control without a token: it holds nothing that could be given back.
  virtual void on_acknowledged(const Message& message) = 0;
};

// One thread.
class FabricNetwork {
 public:
  FabricNetwork(EventQueue& events, const Topology& topology, const FabricNetworkOptions& options);

  // `sink` outlives the network's last event.
  void attach(HostIndex host, FabricSink* sink) { sinks_[host.value] = sink; }
  void send(const Message& message);

  // For reports. Ports are the ends of cables: 2 c sends from Cable::a to b, 2 c + 1 back.
  struct PortCounters {
    Duration busy;                 // sending
    Duration paused;               // some level of it was held by flow control
    std::uint64_t pauses = 0;      // how often
    std::uint64_t peak_bytes = 0;  // most ever queued
  };
  std::vector<PortCounters> counters() const;
  std::uint64_t operations() const { return operations_; }

 private:
  static constexpr std::uint32_t kNone = ~0u;
  struct Train {
    std::uint32_t message = 0, bytes = 0;
    std::uint32_t next = kNone;     // in its queue
    std::uint32_t ingress = kNone;  // the port that it came by
    Time whole;                     // when its last byte is at the port that it waits at
    bool last = false;              // of its operation
  };
  struct Queue {
    std::uint32_t first = kNone, last = kNone;
    std::uint64_t bytes = 0;
    std::int64_t deficit = 0;
  };
  struct Port {
    NodeIndex to = 0;
    BitsPerSecond rate;
    Duration delay;
    std::array<Queue, kLevels> queues;
    std::array<std::uint64_t, kLevels> held_behind{};  // bytes that came by this port and wait in the switch behind it
    std::uint32_t paused = 0, asked_to_pause = 0;      // levels, as bits
    std::uint32_t turn = 1;                            // kWeighted
    bool sending = false;
    std::uint32_t sending_bytes = 0, sending_ingress = kNone;
    std::uint8_t sending_level = 0;
    Time paused_since;
    PortCounters counters;
  };

  void send_ahead(std::uint32_t message);
  void arrive(std::uint32_t port, std::uint32_t train);
  void enqueue(std::uint32_t port, std::uint32_t train);
  void start(std::uint32_t port);
  void sent(std::uint32_t port, std::uint32_t level);
  static Duration length(const Port& port, std::uint64_t bytes);
  void deliver(std::uint32_t train);
  std::uint32_t next_level(Port& port);
  std::uint32_t next_weighted(Port& port);
  void hold(std::uint32_t ingress, std::size_t level, std::uint64_t bytes);
  void release(std::uint32_t ingress, std::size_t level, std::uint64_t bytes);
  void set_paused(std::uint32_t port, std::uint32_t level, bool paused);
  std::uint32_t route(NodeIndex node, const Message& message) const;
  Duration way_back(const Message& message) const;
  std::uint32_t new_train();

  EventQueue& events_;
  const Topology topology_;
  const FabricNetworkOptions options_;
  const Routes routes_;
  std::vector<FabricSink*> sinks_;
  std::vector<Port> ports_;
  std::vector<Message> messages_;
  std::vector<std::uint32_t> free_messages_, free_trains_;
  std::vector<Train> trains_;
  std::uint64_t operations_ = 0;
};

}  // namespace tensorlane::simulator
