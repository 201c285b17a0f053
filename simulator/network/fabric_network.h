// A network of hosts, links and switches for planning, with a queue per level of service at every port; lossless unless
// switches have a buffer. It carries lengths and headers, never bytes, and moves trains of packets: one transport
// operation, or a part of it, that passes a port in one piece. The first packet of a train is forwarded while the last
// is still being sent, as switches of small packets do, so that a way of equal links takes a train's length once.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "common/protocol/frame.h"
#include "simulator/clock/event_queue.h"
#include "simulator/clock/random.h"
#include "simulator/network/dcqcn.h"
#include "simulator/network/marking.h"
#include "simulator/network/packet.h"
#include "simulator/network/switch_memory.h"
#include "simulator/network/topology.h"

namespace tensorlane::simulator {

enum class Discipline : std::uint8_t {
  kFifo,  // one queue
  // A queue per level, the first that is not empty is served. Control never waits: it is one packet at a time.
  kStrict,
};

struct FabricNetworkOptions {
  Discipline discipline = Discipline::kStrict;
  Bytes train = kMaxOperation;      // operations are cut into trains of at most this
  std::uint64_t header_bytes = 64;  // of an operation
  double goodput = 1;               // the share of a link's rate that operations get of packets' headers
  // None of these: switches hold whatever windows allow, and nothing more is computed than without them.
  std::optional<PauseThresholds> flow_control;
  std::optional<SharedBuffer> buffer;
  std::optional<Marking> marking;
  // What a full switch refused leaves its host once more after this: between the round trip of a negative
  // acknowledgement and a time-out. What follows it waits for it at the receiver.
  Duration resend = microseconds(500);
  // A reliable connection of RoCE (InfiniBand's specification, volume 1, section 9.7): what arrives behind something
  // that is missing is thrown away, the first of it is answered with a negative acknowledgement, and that makes the
  // sender begin again at what is missing. One answer for each gap: when its repetition is lost, or nothing followed
  // the loss, `resend` is the sender's time-out.
  bool go_back_n = false;
  std::uint64_t seed = 1;  // of marks
};

// One transport operation.
struct Message {
  HostIndex from, to;
  std::uint8_t level = 0;
  std::uint8_t job = 0;
  protocol::FrameHeader header;
  std::uint64_t token = 0;
};

// The job of messages that are nobody's here: see attach_foreign().
inline constexpr std::uint8_t kForeignJob = 0xff;

// A host's side of the network.
class FabricSink {
 public:
  virtual ~FabricSink() = default;
  virtual void on_delivered(const Message& message) = 0;  // whole; in order per (sender, level)
  // One way's delay later, with the sender. Not of control without a token: it holds nothing that could be given back.
  virtual void on_acknowledged(const Message& message) = 0;
  // `from` has opened its flow of a job and level to this host.
  virtual void on_opened(HostIndex, std::uint8_t /*job*/, std::size_t /*level*/) {}
};

// One thread.
class FabricNetwork {
 public:
  FabricNetwork(EventQueue& events, const Topology& topology, const FabricNetworkOptions& options);

  // `sink` outlives the network's last event.
  void attach(HostIndex host, FabricSink* sink) { sinks_[host.value] = sink; }
  // Gets the messages of kForeignJob, wherever they arrive.
  void attach_foreign(FabricSink* sink) { foreign_ = sink; }
  void send(const Message& message);
  // A flow between two hosts is there, at once: who opens it tells the other one.
  void open(HostIndex from, HostIndex to, std::uint8_t job, std::size_t level);

  // For reports. Ports are the ends of cables: 2 c sends from Cable::a to b, 2 c + 1 back.
  struct PortCounters {
    Duration busy;                 // sending
    Duration paused;               // some level of it was held by flow control
    std::uint64_t pauses = 0;      // how often
    std::uint64_t peak_bytes = 0;  // most ever queued
  };
  std::vector<PortCounters> counters() const;
  std::uint64_t operations() const { return operations_; }
  // The most that any host has, of all jobs.
  std::size_t most_flows() const { return *std::ranges::max_element(flows_of_hosts_); }
  struct Totals {
    std::uint64_t marked = 0, notified = 0;           // trains, and notifications that came of them
    std::uint64_t refused = 0;                        // trains that a switch had no room for
    std::uint64_t sent_again = 0, discarded = 0;      // for that, and behind a gap at their receiver
    std::uint64_t peak_bytes = 0, peak_headroom = 0;  // see SwitchMemory
  };
  Totals totals() const;

 private:
  static constexpr std::uint32_t kNone = ~0u;
  struct Train {
    std::uint32_t message = 0, bytes = 0;
    std::uint32_t next = kNone;          // in its queue
    std::uint32_t ingress = kNone;       // the port that it came by
    Time whole;                          // when its last byte is at the port that it waits at
    std::uint32_t order = 0, round = 0;  // in its flow, and how often that had begun again before it left
    bool last = false;                   // of its operation
    bool marked = false;
  };
  struct Queue {
    std::uint32_t first = kNone, last = kNone;
    std::uint64_t bytes = 0;
  };
  struct Port {
    NodeIndex to = 0;
    BitsPerSecond rate;
    Duration delay;
    std::array<Queue, kLevels> queues;
    std::uint32_t paused = 0;  // levels, as bits
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
  std::uint32_t next_level(const Port& port) const;
  void hand_over(std::uint32_t index);
  bool is_kept(std::uint32_t port, std::uint32_t train);
  void set_paused(std::uint32_t port, std::uint32_t level, bool paused);
  std::uint32_t route(NodeIndex node, const Message& message) const;
  Duration way_back(const Message& message) const;
  std::uint32_t new_train();

  // Flows: fabric_flows.cc. Only where trains may be marked or refused.
  struct Sent {
    std::uint32_t message = 0, bytes = 0;
  };
  struct Flow {
    DcqcnRate rate;
    std::uint32_t port = kNone;                    // of its host
    std::uint32_t first = kNone, last = kNone;     // trains that have not left
    std::uint32_t oldest = kNone, newest = kNone;  // messages that are not handed over, in the order of sending
    Time next;                                     // when the rate lets the next train go
    std::optional<Time> notified;                  // when the receiver did last
    // go_back_n: what has left and is not taken, the first with the order `expected`.
    std::deque<Sent> sent;
    std::uint32_t next_order = 0, expected = 0, round = 0;
    bool answered = false;                    // the receiver has, the gap before `expected`
    bool at_port = false, scheduled = false;  // a train waits at the host's port, or for `next`
  };
  struct Outstanding {
    std::uint32_t flow = kNone, newer = kNone;  // message of its flow
    std::uint32_t left = 0;                     // trains that have not arrived
  };
  std::uint32_t flow_of(const Message& message);
  void send_by_flow(std::uint32_t message);
  void pump(std::uint32_t flow);
  void train_left(std::uint32_t flow);
  void train_refused(std::uint32_t train);
  void train_arrived(const Train& train);
  bool is_next(std::uint32_t flow, const Train& train);
  void time_out(std::uint32_t flow, std::uint32_t order, std::uint32_t round);
  void go_back(std::uint32_t flow);
  void mark(std::uint32_t port, std::uint32_t train);
  void notify(std::uint32_t flow, const Message& message);

  EventQueue& events_;
  const Topology topology_;
  const FabricNetworkOptions options_;
  const Routes routes_;
  std::vector<FabricSink*> sinks_;
  std::vector<std::size_t> flows_of_hosts_;
  std::vector<Port> ports_;
  std::vector<Message> messages_;
  std::vector<std::uint32_t> free_messages_, free_trains_;
  std::vector<Train> trains_;
  std::uint64_t operations_ = 0;
  FabricSink* foreign_ = nullptr;

  const bool by_flow_;  // trains may be marked or refused
  std::optional<SwitchMemory> memory_;
  Random random_;
  std::vector<Flow> flows_;
  std::unordered_map<std::uint64_t, std::uint32_t> flow_numbers_;  // never iterated
  std::vector<Outstanding> outstanding_;                           // by message
  std::vector<std::uint32_t> leaving_;                             // by port of a host: the flow whose train it sends
  std::uint64_t marked_ = 0, notified_ = 0, refused_ = 0, sent_again_ = 0, discarded_ = 0;
};

}  // namespace tensorlane::simulator
