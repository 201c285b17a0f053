// Hosts around one switch. Each host has an uplink port (its NIC) and a downlink port (the switch's port towards it).
// On top of it one reliable, ordered flow per (job, sender, receiver, class), as TCP gives it: a lost packet costs a
// retransmission and holds up its own flow, never another. A connection can be reset: both directions of the flow lose
// what is on its way, and both hosts are told; they carry on over a new connection once they reach each other. Nothing
// is random but by the generator given.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "daemon/transport/ledger/ledger.h"
#include "simulator/clock/event_queue.h"
#include "simulator/clock/random.h"
#include "simulator/network/congestion.h"
#include "simulator/network/packet.h"
#include "simulator/network/port.h"

namespace tensorlane::simulator {

struct HostPorts {
  PortConfig uplink, downlink;
};

struct NetworkConfig {
  std::vector<HostPorts> hosts;
  Bytes packet = kib(64);  // operations are cut into packets of at most this, so that urgent ones overtake between them
  double loss = 0;         // probability that a packet is lost
  Duration jitter{0};      // at most this much extra delay per packet on its way to the switch
  CongestionConfig congestion;  // with pauses or a shared buffer that memory takes the place of the ports' own
  Duration first_timeout = milliseconds(2), last_timeout = milliseconds(64);  // of retransmissions; doubles in between
};

// A host's side of the network.
class NetworkSink {
 public:
  virtual ~NetworkSink() = default;
  virtual void on_packet(const Packet& packet) = 0;         // in order per flow
  virtual void on_arrived(const FramePtr& frame) = 0;       // for the sender, which could not know it yet: for checks
  virtual void on_acknowledged(const FramePtr& frame) = 0;  // the receiver's kernel has all of it
  virtual void on_heartbeat(HostIndex from, const Heartbeat& beat) = 0;
  // The connection of the flow is lost: nothing more of it comes, nothing may be sent until on_resumed().
  virtual void on_reset(const Channel& channel) = 0;
  // Whether a new connection can be made now, and if so, how many frames of the peer have been delivered.
  virtual std::optional<ledger::Number> on_reconnect(const Channel& channel) = 0;
  // There is a new connection; the peer has `delivered` frames of this host.
  virtual void on_resumed(const Channel& channel, ledger::Number delivered) = 0;
  // The peer says, on the connection, that it has `delivered` frames of this host.
  virtual void on_acknowledged(const Channel& channel, ledger::Number delivered) = 0;
};

class Network {
 public:
  // `jobs`: which share it, each on the first so many hosts. None: one job, on all of them.
  Network(EventQueue& events, const NetworkConfig& config, Random random, std::vector<std::uint16_t> jobs = {});

  void attach(HostIndex host, NetworkSink* sink);
  void send(FramePtr frame);
  void send(HostIndex from, HostIndex to, const Heartbeat& beat);
  // `from` says on its flow with channel.peer how many of that one's frames have been delivered.
  void tell(HostIndex from, const Channel& channel, ledger::Number delivered);
  // The host's flows of this job are closed: nothing of its frames is sent again, nothing reaches it. Heartbeats still
  // pass.
  void close(std::size_t job, HostIndex host);
  // The host is gone: heartbeats, too, end.
  void remove(HostIndex host);

  // Faults.
  void set_cut(HostIndex from, HostIndex to, bool cut);  // one direction
  // Frames of this class are dropped in this direction; heartbeats pass.
  void set_dropped(HostIndex from, HostIndex to, ClassId cls, bool dropped) {
    dropped_[index(from, to) * kLevels + level_of(cls)] = dropped;
  }
  bool is_cut(HostIndex from, HostIndex to) const { return cut_[index(from, to)]; }
  // The connection of the flow between `host` and channel.peer, in both directions. New ones are attempted until one
  // succeeds, or one of the hosts has closed.
  void reset(HostIndex host, const Channel& channel);
  void scale_downlink(HostIndex host, double factor);  // of the configured rate
  void scale_uplink(HostIndex host, double factor);

  std::uint64_t packets() const { return packets_; }
  std::uint64_t lost() const { return lost_; }
  std::uint64_t overflowed() const { return overflowed_; }
  Congestion::Counters congestion() const { return congestion_ ? congestion_->counters() : Congestion::Counters(); }

 private:
  struct ReceivingFlow {
    std::uint64_t sent = 0;      // packets that the sender has numbered
    std::uint64_t expected = 0;  // next packet that the receiver takes
    std::map<std::uint64_t, Packet> held;
    ledger::Number told = 0;  // of its frames, how many the sender has been told to be delivered
  };
  struct Attached {
    NetworkSink* sink = nullptr;
    std::vector<bool> open;  // by job
    bool present = true;
  };
  struct Job {
    std::uint16_t hosts = 0;
    std::size_t first = 0;  // its first flow
  };
  std::size_t index(HostIndex from, HostIndex to) const { return from.value * attached_.size() + to.value; }
  // Of the flow from `from` to channel.peer.
  std::size_t flow_index(HostIndex from, const Channel& channel) const {
    const Job& job = jobs_[channel.job];
    return job.first + (std::size_t{from.value} * job.hosts + channel.peer.value) * kLevels + channel.level;
  }
  // Of those of a frame.
  ReceivingFlow& flow(const Packet& p) { return flows_[flow_index(p.from, {p.frame->job, p.to, p.level})]; }
  std::uint64_t& connection(HostIndex host, const Channel& channel) {
    const HostIndex peer = channel.peer;
    return connections_[flow_index(std::min(host, peer), {channel.job, std::max(host, peer), channel.level})];
  }
  std::uint64_t& connection(const Packet& p) { return connection(p.from, {p.frame->job, p.to, p.level}); }
  bool is_open(std::size_t job, HostIndex host) const { return attached_[host.value].open[job]; }
  void reconnect(HostIndex host, const Channel& channel, std::uint64_t connection, Duration backoff);
  void make_congestion(Random random);
  void transmit(Packet packet);
  void at_switch(Packet packet);
  void forward(Packet packet);
  void enqueue(Packet packet);
  void at_host(Packet packet);
  void lose(Packet packet);
  void acknowledge(FramePtr frame, std::uint64_t connection);
  Attached& at(HostIndex host) { return attached_[host.value]; }

  EventQueue& events_;
  NetworkConfig config_;
  Random random_;
  std::vector<Job> jobs_;
  std::vector<Attached> attached_;
  std::vector<std::unique_ptr<Port>> uplinks_, downlinks_;
  std::unique_ptr<Congestion> congestion_;  // null where nothing crowds the ports
  std::vector<bool> cut_, dropped_;         // by hosts; by hosts and level
  std::vector<ReceivingFlow> flows_;
  std::vector<std::uint64_t> connections_;  // of each flow, the number of the one that carries it
  std::uint64_t packets_ = 0, lost_ = 0, overflowed_ = 0;
};

}  // namespace tensorlane::simulator
