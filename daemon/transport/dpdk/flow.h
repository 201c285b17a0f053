// A flow that is up: frames in both directions over an association of its own, beside the TCP connection that says when
// the peer closes it or dies.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/datagram/association.h"
#include "daemon/transport/datagram/ring.h"
#include "daemon/transport/dpdk/way.h"
#include "daemon/transport/handshake/socket.h"
#include "daemon/transport/handshake/up_flow.h"
#include "daemon/transport/protect/record_cipher.h"

namespace tensorlane::dpdk {

// What the flows of one class share. Outlives them.
struct ClassShare {
  ports::ClassTag tag;
  std::size_t queue = 0;  // of the port
  Bytes window;
  bool payload_crc = false;     // payloads carry one
  std::uint64_t in_flight = 0;  // bytes that peers do not have
  std::vector<Flow*> dirty;     // may have something to send, in turn
  // Packets that are read where the payload lies, until the port has released so many, in order.
  struct Borrowed {
    std::uint32_t flow = 0;
    std::uint64_t packet = 0, after = 0;
  };
  datagram::Ring<Borrowed> borrowed;
};

// One thread, the lane's. Callbacks may close the flow that they come from: nothing of it is delivered after that.
class Flow final : public handshake::UpFlow, private ports::FrameSink, private datagram::CreditHolder {
 public:
  struct Context {  // outlive the flow
    ClassShare& share;
    FlowNumbers& numbers;
    datagram::Credits& credits;
    std::vector<Flow*>& acks;  // flows that may have something to acknowledge
    Duration detection;
  };
  Flow(const ports::FlowKey& key, handshake::JobPtr job, handshake::Fd socket, std::unique_ptr<Way> way,
       const protect::RecordSecrets& secrets, const Context& context);
  ~Flow() override;

  int fd() const { return socket_.get(); }
  const Path& path() const { return way_->path(); }
  const IpAddress& peer() const { return way_->peer(); }
  bool reachable() const { return way_->reachable(); }
  std::uint32_t number() const { return way_->number(); }

  bool writable() const override { return !stopped_ && association_.writable(); }
  void send(const ports::Outgoing& operation) override;
  ports::FlowStats stats() const override;
  ports::FlowProgress progress() const override { return association_.progress(); }
  std::uint64_t payloads_dropped() const { return payloads_dropped_; }
  const datagram::AssociationCounters& packets() const { return association_.counters(); }
  // That the peer has sent, each once.
  std::uint64_t packets_received() const {
    const datagram::AssociationCounters& counters = association_.counters();
    return counters.packets_received - counters.duplicates;
  }

  // A packet that has come with its number. Adds frames that are complete, and operations that the peer has, to
  // `handled`. False: failure() says why, and the flow ends.
  [[nodiscard]] bool take(Time now, std::span<std::byte> packet, bool marked, std::size_t& handled);
  const Status& failure() const { return failure_; }
  // The next packet with data, or with an acknowledgement: how long it is; 0: there is none.
  std::size_t make(Time now, std::span<std::byte> out) { return association_.make(now, out); }
  std::size_t make_ack(Time now, std::span<std::byte> out) { return association_.make_ack(now, out); }
  // The next packet with data without a copy of the payload: parts, the first of them in `own`. What it borrows stays
  // as it is until released().
  bool make(Time now, std::span<std::byte> own, datagram::Gathered* packet) {
    return association_.make(now, own, packet);
  }
  // The packet of that number, and those before it, are read no more. Adds operations that are over to `handled`.
  void released(std::uint64_t packet, std::size_t& handled);
  // Packets read payloads that belong to the callers of send(), even if the flow has ended.
  bool borrows() const { return association_.borrows(); }
  ClassShare& share() { return share_; }
  // When on_time() is due.
  std::optional<Time> deadline() const { return association_.deadline(); }
  // `linked`: this host's port has a link.
  Status on_time(Time now, bool linked);
  // Whether something has waited for the peer for so long, without a word of it in this flow.
  bool waits_for(Time now, Duration time) const {
    const std::optional<Time> since = association_.waits_since();
    return since && now - *since >= time;
  }
  // Asks the peer for a word.
  void ask(Time now) { association_.ask(now); }

  // What the connection says: an error where the peer has closed it, or died.
  Status look_at_connection();
  handshake::Fd take_socket() { return std::move(socket_); }
  // Neither sends nor delivers from now on.
  void stop();

  // Puts it on the list of flows that may have something to send, or to acknowledge, unless it is there.
  void mark_dirty();
  void mark_ack();

  // The transport's notes.
  bool dirty = false, has_ack = false;  // is in these lists
  std::optional<Time> timer;            // when it is woken

 private:
  static datagram::AssociationConfig config_of(const ports::FlowKey& key, const Way& way,
                                               const protect::RecordSecrets& secrets, const Context& context);
  // What comes from the association goes on to sink_ when it belongs here.
  Result<std::span<std::byte>> on_header(const protocol::FrameHeader& header) override;
  void on_frame(const protocol::FrameHeader& header) override;
  void on_sent(std::uint64_t token) override;
  void credit_raised() override { mark_ack(); }
  void count_outstanding();

  handshake::Fd socket_;
  const std::unique_ptr<Way> way_;
  ClassShare& share_;
  FlowNumbers& numbers_;
  std::vector<Flow*>& acks_;
  const std::string protection_;  // for people
  datagram::Association association_;
  std::uint64_t outstanding_ = 0;  // of share_.in_flight
  bool stopped_ = false;
  Status failure_;
  std::size_t handled_ = 0;
  ports::FlowStats counts_;
  std::uint64_t payloads_dropped_ = 0;
};

}  // namespace tensorlane::dpdk
