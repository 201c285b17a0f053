// What a transport, which belongs to one NIC, offers to a lane. TCP, RDMA, DPDK and local each are a folder of
// daemon/transport that implements this, and mixed is one that chooses between them. CONTRIBUTING.md lists the steps
// for another one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/secret.h"
#include "common/base/status.h"
#include "common/base/units.h"
#include "common/protocol/frame.h"

namespace tensorlane::ports {

// A flow as one daemon sees it: a job of this lane, the host at the other end, the class (kControlClass for control
// traffic).
struct FlowKey {
  JobId job;
  HostIndex peer;
  ClassId cls;
  auto operator<=>(const FlowKey&) const = default;
};

// The key that two hosts share for their flows of one epoch of one job: 32 random bytes that control has made and sent
// encrypted (law 23). Whoever does not hold it learns nothing from a host and can join no flow.
inline constexpr std::size_t kPairKeyBytes = 32;
using PairKey = std::array<std::byte, kPairKeyBytes>;
using PairKeys = std::vector<PairKey, WipingAllocator<PairKey>>;

// What proves to a peer that a flow belongs to the job (laws 14, 23): HMAC-SHA256 under the pair's key. And what the
// job asks for.
struct JobCredentials {
  JobId job;
  Epoch epoch;
  HostIndex self;
  PairKeys keys;        // by the peer's index; that of this host itself is not used. Empty in a job of one host
  RailIndex rail = {};  // of the transport: rail i speaks to rail i (law 12)
  // How long a flow whose connection is lost may take to be resumed on a new one, from the receivers' ledgers (law 7);
  // 0: it goes down at once. Either 0 or not on all hosts of the job.
  Duration resume_within{};
};

// How one class is tagged. From the class table of fabric.yaml, nowhere else.
struct ClassTag {
  ClassId cls;
  std::uint8_t dscp = 0;           // 0..63
  std::uint8_t pcp = 0;            // 0..7; also the socket priority, at most 6 without privilege
  std::uint8_t service_level = 0;  // 0..15; of RDMA
};

// Where a transport puts what arrives on one flow. Called on the lane's thread, from inside Transport::poll() and
// flush(), after on_flow_up() has returned it and before on_flow_down() is called.
class FrameSink {
 public:
  virtual ~FrameSink() = default;
  // A checked header has arrived. Answers where its payload lands: exactly header.payload_bytes, valid until on_frame()
  // for the same frame or on_flow_down(). It is asked again for the same frame where the flow was resumed in between.
  // Frames of a flow land one after the other. Empty with ok() for a frame with a payload means: read and drop it
  // (stale grant); on_frame() is then not called. An error closes the flow with that cause.
  virtual Result<std::span<std::byte>> on_header(const protocol::FrameHeader& header) = 0;
  // The payload of a frame is complete and, where it carries one, its CRC is right. In the flow's order.
  virtual void on_frame(const protocol::FrameHeader& header) = 0;
  // The transport no longer reads the payload given to send() with this token. In order.
  virtual void on_sent(std::uint64_t token) = 0;
  // The memory behind the grant that a frame gives (protocol::given_grant), in order: one piece, or pages of
  // kMaxOperation of which the last may be shorter. Asked from inside Flow::send() by transports that let the peer
  // write there; valid until that returns.
  virtual std::span<const std::span<std::byte>> granted([[maybe_unused]] const protocol::FrameHeader& header) {
    return {};
  }
};

// One operation: a header and its payload, at most kMaxOperation. The transport fills in the header's class, job,
// epoch, payload length and CRC.
struct Outgoing {
  protocol::FrameHeader header;
  std::span<const std::byte> payload;  // owned by the caller until on_sent(token)
  std::uint64_t token = 0;             // 0: the sink is not told
};

// Memory of a device that a peer may write into, exported as a dmabuf.
struct DeviceMemory {
  int dmabuf = -1;            // the caller's; it may be closed after map()
  std::uint64_t offset = 0;   // in the dmabuf
  std::uint64_t address = 0;  // as payloads and places name it
  std::size_t length = 0;
};

struct FlowStats {
  std::uint64_t bytes_sent = 0, bytes_received = 0, frames_sent = 0, frames_received = 0;
  int effective_dscp = -1, effective_pcp = -1;  // read back from the device; -1 unknown
  std::string transport;                        // "tcp"
  std::string describe;                         // "10.1.0.1:7101 -> 10.1.0.2:7101"
  std::string protection;                       // "encrypt, AES-256-GCM"; empty: none
};

// How far a flow has come (law 21). Frames are numbered alike at both ends: what one has given, the other receives.
// Both count on when the flow is resumed.
struct FlowProgress {
  std::uint64_t given = 0;     // frames that send() took
  std::uint64_t received = 0;  // frames of the peer that were delivered, or dropped for a stale grant
  // What is known of frames that the peer's host has not acknowledged; 0: nothing, or the device does not say.
  std::uint64_t outstanding_bytes = 0;
  std::uint64_t retransmissions = 0;  // packets, since the connection was made
  std::uint32_t path_mtu = 0;
};

// A flow that is authenticated in both directions and can carry frames. It is the transport's, and lives until
// FlowOwner::on_flow_down() has returned; a connection that is resumed is still the same flow.
class Flow {
 public:
  virtual ~Flow() = default;
  // Whether send() would take an operation now: its queue has room for one, and it has not been closed.
  virtual bool writable() const = 0;
  // Takes the operation; call only when writable(). It is only queued: Transport::flush() moves it, or the next poll().
  // Errors end in on_flow_down(), never here.
  virtual void send(const Outgoing& operation) = 0;
  virtual FlowStats stats() const = 0;
  // May ask the kernel: not for every frame.
  virtual FlowProgress progress() const { return {}; }
};

// Whose flows they are.
class FlowOwner {
 public:
  virtual ~FlowOwner() = default;
  // A flow is up; it can be sent on once this has returned. Returns where its frames go: the owner keeps that until
  // on_flow_down() is called. No other flow of this name is up: its end has been told.
  virtual FrameSink& on_flow_up(const FlowKey& key, Flow& flow) = 0;
  // The flow, which is up, goes on over a new connection: its stats() name other ends, and tags that were set anew.
  virtual void on_flow_resumed([[maybe_unused]] const FlowKey& key, [[maybe_unused]] const Flow& flow) {}
  // The flow is gone; one of a job that resumes, only after resume_within. `cause` is ok after close(), else it names
  // peer, class and reason. Comes once for what connect() began or on_flow_up() told of; nothing of the flow comes
  // after it, and no buffer given to send() is read any more. Not the place to call remove_job().
  virtual void on_flow_down(const FlowKey& key, const Status& cause) = 0;
};

// One way in which the flows to a peer could go, and why they do or do not.
struct PathCandidate {
  std::string transport;  // "rdma"
  bool chosen = false;
  Duration latency{};         // one way, of 64 bytes; 0 where it was not measured
  BitsPerSecond bandwidth{};  // of the class that was measured; 0 where it was not
  std::string verdict;        // "fastest", "no answer within 1 s"
};

// How the flows to a peer came to go over the transport that they go over. For status and metrics.
struct PathReport {
  Time measured;                          // 0: nothing was
  std::vector<PathCandidate> candidates;  // the most capable first; empty: there was nothing to choose
};

// Of a whole transport, since it was made. For metrics.
struct TransportCounters {
  std::uint64_t accepted = 0;                 // connections that peers made to us, whoever they were
  std::uint64_t refused = 0;                  // of them, refused in the handshake: version, job, epoch, class, secret
  std::uint64_t unauthenticated_dropped = 0;  // of them, silent or slow ones that ran into a limit
  std::uint64_t payloads_dropped = 0;         // stale grants
  std::uint64_t flows_resumed = 0;            // times that a lost connection was replaced and its flow went on
  std::uint64_t frames_resent = 0;            // on the new connections: frames that had been sent on lost ones
  // One-sided transports, and shared memory:
  std::uint64_t payloads_placed = 0;      // written by peers straight to where they belong, or read there from theirs
  std::uint64_t payloads_copied = 0;      // came in messages or through a ring and were copied
  std::uint64_t ports_down = 0;           // times that the port went down
  std::uint64_t retries_exhausted = 0;    // queue pairs lost because a peer did not acknowledge
  std::uint64_t receivers_not_ready = 0;  // queue pairs lost because a peer had no receive posted
  std::uint64_t access_errors = 0;        // queue pairs lost because memory could not be read or written

  TransportCounters& operator+=(const TransportCounters& more) {
    accepted += more.accepted;
    refused += more.refused;
    unauthenticated_dropped += more.unauthenticated_dropped;
    payloads_dropped += more.payloads_dropped;
    flows_resumed += more.flows_resumed;
    frames_resent += more.frames_resent;
    payloads_placed += more.payloads_placed;
    payloads_copied += more.payloads_copied;
    ports_down += more.ports_down;
    retries_exhausted += more.retries_exhausted;
    receivers_not_ready += more.receivers_not_ready;
    access_errors += more.access_errors;
    return *this;
  }
};

// The flows of one NIC. All calls on the lane's thread. Nothing blocks.
class Transport {
 public:
  virtual ~Transport() = default;

  // Jobs whose flows may be accepted or made. Accepting for a job that is not there fails the handshake, with an error
  // at the peer.
  virtual void add_job(const JobCredentials& credentials) = 0;
  // Closes every flow of the job (on_flow_down with ok), then forgets its secret.
  virtual void remove_job(JobId job) = 0;

  // Starts to make the flow to the peer whose first data port (the control class's) is `data_port`; `address` as in
  // fabric.yaml ("10.1.0.2", numeric IPv4 or IPv6). The host with the lower index connects, the other one accepts.
  // Retries while the peer does not listen or does not know the job yet, until `deadline`; ends in on_flow_up or
  // on_flow_down. Errors: kInvalidArgument for an address that is none, kNotFound for a job or class that is not there,
  // kAlreadyExists for a flow that is there.
  virtual Status connect(const FlowKey& flow, const std::string& address, std::uint16_t data_port, Time deadline) = 0;
  // on_flow_down(ok) follows from poll(). From then on nothing arrives any more, not even by a write of the peer that
  // was on its way (law 7).
  virtual void close(const FlowKey& flow) = 0;

  // Memory of a job that payloads are read from and land in (staging, arenas): registered once, when it appears. May
  // take long (a tenth of a second for each GiB). What is not mapped works too, by copying. Errors: kResourceExhausted
  // (names the limit), kNotFound (no such job).
  virtual Status map([[maybe_unused]] JobId job, [[maybe_unused]] std::span<std::byte> bytes) { return {}; }
  // The same for device memory. Payloads land there by one-sided writes only. Errors: also kUnavailable (device, driver
  // or kernel cannot register a dmabuf), kInvalidArgument (it is none; or this transport, or one of several behind it,
  // reads host memory alone).
  virtual Status map([[maybe_unused]] JobId job, [[maybe_unused]] const DeviceMemory& memory) {
    return {Code::kInvalidArgument, "this transport reads no device memory", "transport",
            "set `transport: rdma` in daemon.yaml"};
  }
  // Ends what map() did for the job. Call it after the last on_flow_down of its flows, before the memory goes.
  virtual void unmap([[maybe_unused]] JobId job) {}
  // Ends what map() did for one piece of memory that nothing uses any more, while flows are up.
  virtual void unmap([[maybe_unused]] JobId job, [[maybe_unused]] std::span<std::byte> bytes) {}

  // Moves what is queued, as much as can be moved without blocking; calls sinks. Where Flow::send() itself moves it,
  // there is nothing to do.
  virtual void flush() {}
  // Bytes given to send() in this class, over all peers, that their receivers have not acknowledged (law 8).
  virtual Bytes in_flight(ClassId cls) = 0;

  // Does what can be done without blocking; calls sinks and the owner. Returns how many frames and completions it
  // handled.
  virtual std::size_t poll(Time now) = 0;
  // Becomes readable (level-triggered) when poll() has work, provided that arm() has been called since the last poll().
  // For blocking in epoll; never closed while the transport lives.
  virtual int wake_fd() const = 0;
  // The caller is about to block on wake_fd(). False: there is work already, do not block.
  virtual bool arm() { return true; }

  // What was chosen for the flows of a job to a peer; empty after remove_job().
  virtual PathReport path([[maybe_unused]] JobId job, [[maybe_unused]] HostIndex peer) const { return {}; }
  virtual TransportCounters counters() const { return {}; }
};

}  // namespace tensorlane::ports
