// A flow that is up: frames in both directions over one or more queue pairs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/handshake.h"
#include "daemon/transport/handshake/socket.h"
#include "daemon/transport/rdma/completion_queue.h"
#include "daemon/transport/rdma/place_table.h"
#include "daemon/transport/rdma/queue_pair.h"
#include "daemon/transport/resume/resumable.h"

namespace tensorlane::rdma {

// Operations that a flow queues before it stops being writable.
inline constexpr std::size_t kQueueOperations = 64;

class Flow;

// What the flows of one class share.
struct ClassShare {
  ports::ClassTag tag;
  bool payload_crc = false;  // payloads carry one
  std::unique_ptr<CompletionQueue> completions;
  std::uint64_t in_flight = 0;
  std::vector<Flow*> dirty;  // have something to post
};

// What a flow shares with others. Outlives the flow, except the job's parts, which it holds.
struct FlowContext {
  std::shared_ptr<Registrations> registrations;
  std::shared_ptr<PlaceTable> places;  // of the peer
  ClassShare& share;
  ports::TransportCounters& counters;
};

// What a flow runs over: queue pairs, and beside them the connection of their handshake, which stays open: it ends when
// either end does.
struct Connected {
  handshake::Fd socket;
  std::vector<std::unique_ptr<QueuePair>> pairs;
  bool connecting_end = false;
};

// Its queue pairs take turns, one operation each, in the same order at both ends; so frames come out in the order in
// which they went in although queue pairs may overtake each other. One thread, the lane's. Callbacks may close the flow
// that they come from (stop() is then called): nothing of it is delivered after that.
//
// A flow of a job that resumes outlives its queue pairs. An operation is kept until the peer's device has acknowledged
// it, and its payload until on_sent(), which follows. Nothing more is needed: what a device has acknowledged is in the
// peer's memory, where the loss of a queue pair does not reach it, and the peer delivers all of that before it says
// what it has (settled()). One whose device gives nothing back any more never says it, and the flow goes down in time.
// There is one exception, the end that has just connected: the peer's queue pairs acknowledge before its flow is up,
// and if the handshake is lost at its very last message, they go with all that they have got. So no acknowledgement
// counts before the peer's first message, which it sends as soon as its flow is up.
//
// A payload that was written under a grant and whose frame the peer does not have is written again: the same bytes
// (they are the transport's until on_sent()) to the same place, which is reserved until that frame is delivered (law
// 3). A write of the old queue pair cannot come later than that: the peer's queue pair has been destroyed before its
// ledger is spoken, and a device drops what comes for one that is not there.
class Flow final : public resume::Resumable {
 public:
  Flow(const ports::FlowKey& key, handshake::JobPtr job, const resume::FlowIdentity& identity, Connected connected,
       const FlowContext& context);
  ~Flow() override;

  int fd() const { return socket_.get(); }

  bool writable() const override {
    return !stopped_ && !ending_ && connected() && !out_.full() && out_.pushed() - out_.next() < kQueueOperations;
  }
  void send(const ports::Outgoing& operation) override;
  // Puts it on the list of flows to write, and takes it off.
  void mark_dirty();
  void unmark_dirty();
  // Posts queued operations while credits and slots last. An error ends the flow.
  Status write();
  // Messages of `pair` up to this position are acknowledged. Adds finished operations to `handled`.
  void sent(QueuePair& pair, std::uint32_t position, std::size_t& handled);
  // Delivers what has arrived and whose turn it is. Adds finished frames to `handled`. An error ends the flow.
  Status deliver(std::size_t& handled);

  // What the handshake's connection says: ok while it lives.
  Status look_at_connection();

  bool connected() const override { return !pairs_.empty() && !lost_; }
  bool settled() const override { return pairs_.empty(); }
  // Whether the flow may go on over other queue pairs after this error of deliver(), failure() or look_at_connection():
  // kUnavailable is the connection's, everything else is about what came over it.
  bool resumable(const Status& error) const { return resumes() && !goodbye_ && error.code() == Code::kUnavailable; }
  // Gives up the queue pairs and the connection. What has arrived is still to be delivered: complete when drained().
  void disconnect();
  // The flow settles: the queue pairs are gone, and what was half sent or half received is as if it had not been begun.
  void drop_pairs();
  // Goes on; the peer has `delivered` frames, which can_resume(). Returns how many that were sent before will be sent
  // again.
  std::uint64_t resume(Connected connected, ledger::Number delivered);
  // Tells the peer that the flow is about to be closed on purpose.
  void say_goodbye();

  // The end begins: the pairs take nothing any more. What has arrived before may still be delivered.
  void begin_end();
  // Neither sends nor delivers from now on, and forgets what is queued.
  void stop();
  bool stopped() const { return stopped_; }
  // No write can land any more, and nothing is read.
  bool drained() const;
  bool has(const ibv_qp* pair) const;
  // What went wrong with one of its pairs, naming this flow; else ok.
  Status failure() const;
  handshake::Fd take_socket() { return std::move(socket_); }

  ports::FlowStats stats() const override;
  // Devices count what they send again for all queue pairs together, if at all, so it says nothing of that.
  ports::FlowProgress progress() const override;

  // The transport's notes.
  bool dirty = false;  // is in ClassShare::dirty

 private:
  struct Queued {
    std::array<std::byte, protocol::kFrameHeaderBytes> header;
    std::span<const std::byte> payload;
    std::uint32_t payload_key = 0;  // of the payload's registration; 0: it has none
    std::uint32_t grant = 0;
    std::optional<Place> target;  // the payload is written there
    std::vector<Place> places;    // of the grant that the frame gives; keeps its memory
    std::uint64_t token = 0;
    std::size_t bytes() const { return header.size() + payload.size(); }
  };
  Queued& slot(ledger::Number number) { return queue_[out_.slot(number)]; }
  void adopt(Connected connected);
  void fill_places(Queued& slot, const protocol::FrameHeader& header) const;
  void push_message(QueuePair& pair, Queued& operation);
  std::size_t push_frame(QueuePair& pair, Queued& operation);
  void report_sent();
  void report_oldest();

  Status take_frame(const Message& message, std::size_t& handled);
  Status take_payload(std::span<const std::byte> bytes, std::size_t& handled);
  Status check_landed(std::uint64_t landed_at);
  Status frame_complete(std::size_t& handled);

  handshake::Fd socket_;
  std::vector<std::unique_ptr<QueuePair>> pairs_;
  FlowContext context_;
  std::uint32_t path_mtu_ = 0;  // of the last connection
  bool stopped_ = false, ending_ = false, lost_ = false, goodbye_ = false;

  // Sending: operations by slot of the ledger. Those before out_.next() are posted and not acknowledged; that one may
  // be posted in part.
  std::vector<Queued> queue_;
  std::size_t head_posted_ = 0;  // bytes of its payload
  bool head_begun_ = false;
  std::size_t send_turn_ = 0;
  std::vector<std::uint32_t> finished_;  // by pair: acknowledged operations whose turn has not come
  std::size_t sent_turn_ = 0;
  bool unheard_ = false;         // nothing has come of the peer yet, so acknowledgements do not count
  std::uint64_t in_flight_ = 0;  // of this flow

  // Receiving.
  std::size_t receive_turn_ = 0;
  protocol::FrameHeader header_;
  std::span<std::byte> landing_;
  std::size_t payload_left_ = 0;
  bool in_frame_ = false, dropping_ = false;
  std::uint32_t crc_ = 0;

  ports::FlowStats counts_;
};

}  // namespace tensorlane::rdma
