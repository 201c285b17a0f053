// A flow that is up: frames in both directions over one authenticated socket at a time.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/handshake.h"
#include "daemon/transport/handshake/socket.h"
#include "daemon/transport/protect/records.h"
#include "daemon/transport/resume/resumable.h"
#include "daemon/transport/tcp/copies.h"
#include "daemon/transport/tcp/window.h"

namespace tensorlane::tcp {

using handshake::Fd;
using handshake::JobPtr;
using handshake::Watched;
using resume::FlowIdentity;
using RecordsPtr = std::unique_ptr<protect::Records>;

// Operations that a flow queues before it stops being writable.
inline constexpr std::size_t kQueueOperations = 64;
// Operations that a flow keeps until the peer has said that it has them, beside the queued ones.
inline constexpr std::size_t kKeptOperations = 192;
// Operations in one system call.
inline constexpr std::size_t kOperationsPerCall = 16;
// What one flow reads, or writes, in one poll before others get their turn: a block of law 9.
inline constexpr std::size_t kBlockBytes = kMaxOperation.value;

// Memory for reading that all flows of a transport share, because nothing stays in it between two reads.
struct ReadBuffers {
  // Takes what follows a payload: the next headers and the first bytes of their payloads, which are copied from here.
  // Larger saves system calls for small frames, smaller saves copying.
  std::array<std::byte, 8192> bounce;
  // Takes payloads that nobody wants.
  std::array<std::byte, 65536> scratch;
};

// What the flows of one class share. Outlives them.
struct ClassShare {
  ClassShare(const ports::ClassTag& t, Bytes w, bool crc) : tag(t), window(w), payload_crc(crc) {}
  const ports::ClassTag tag;
  ClassWindow window;
  const bool payload_crc;    // payloads carry one
  std::vector<Flow*> dirty;  // have something to write, and are not known to be blocked
  Bytes seen_full;           // in flight when the window was last found full
};

// A flow of a job that resumes (JobCredentials::resume_within) outlives its connection: it keeps what the peer has not
// said to have (kDelivered), and sends it again on the next one. Until the peer has said so, on_sent() waits, because
// only the caller has the bytes; short payloads are copied instead, so that nobody waits for those. A sender sets
// kFlagAck where on_sent() waits; the receiver then acknowledges as soon as it has read what there is, else now and
// then. Other flows keep nothing and acknowledge nothing.
//
// Where records protect the connection (daemon/transport/protect), frames go over it in sealed records, and nothing
// that came is looked at before it has proved to be what the peer sealed. A record that does not prove so ends the
// connection.
//
// One thread, the lane's. Callbacks may close the flow that they come from (stop() is then called): nothing of it is
// delivered after that.
class Flow final : public resume::Resumable {
 public:
  // `share` is its class's. `records`: null where nothing protects the connection.
  Flow(const ports::FlowKey& key, JobPtr job, Fd socket, ClassShare& share, FlowIdentity identity = {},
       RecordsPtr records = nullptr);
  ~Flow() override;

  int fd() const { return socket_.get(); }

  bool writable() const override {
    const bool room = !out_.full() && out_.pushed() - reported_ < queue_.size();
    return !stopped_ && connected() && room && out_.pushed() - out_.next() < kQueueOperations;
  }
  // Nothing to write.
  bool queue_empty() const { return out_.next() == out_.pushed() && !acking(); }
  void send(const ports::Outgoing& operation) override;
  // Puts it on the list of flows to write, unless it is there, or epoll will say when it can go on.
  void mark_dirty();
  // Takes it off that list.
  void unmark_dirty();

  // Moves queued operations into the kernel, straight from the caller's memory, until the queue is empty, the kernel
  // takes no more (blocked() is then true), or a block has gone. Adds finished operations to `handled`. An error ends
  // the flow.
  Status write(std::size_t& handled);
  bool blocked() const { return blocked_; }

  // Reads at most about a block: payloads straight to where they land. Adds finished frames to `handled`. An error ends
  // the flow.
  Status read(ReadBuffers& buffers, std::size_t& handled);

  // The error that read() or write() has returned is one of the connection, not of what came over it, and the flow may
  // go on over another one.
  bool resumable() const { return resumes() && connection_lost_ && !goodbye_; }
  bool connected() const override { return socket_.valid(); }
  bool settled() const override { return !connected(); }
  // Gives up the connection. What was half written or half read is as if it had not been begun.
  void disconnect();
  // Goes on over a new connection, with records of its own where the first one had some; the peer has `delivered`
  // frames, which can_resume(). Returns how many that were sent before will be sent again.
  std::uint64_t resume(Fd socket, RecordsPtr records, ledger::Number delivered);
  // Tells the peer that the connection is about to be closed on purpose, if it takes that now.
  void say_goodbye();

  // Neither sends nor delivers from now on, and forgets what is queued.
  void stop();
  Fd take_socket() { return std::move(socket_); }

  ports::FlowStats stats() const override;
  ports::FlowProgress progress() const override;
  std::uint64_t bytes_received() const { return counts_.bytes_received; }
  std::uint64_t payloads_dropped() const { return payloads_dropped_; }

  // The transport's notes.
  bool outstanding = false;     // is in its ClassWindow's list
  bool dirty = false;           // is in ClassShare::dirty
  bool watches_output = false;  // EPOLLOUT is asked for
  std::uint64_t last_turn = 0;  // when it was last served, for fairness inside a class

 private:
  struct Queued {
    std::array<std::byte, protocol::kFrameHeaderBytes> header;
    std::span<const std::byte> payload;
    std::uint64_t token = 0;
    bool copied = false;  // the payload, once it is written: then it is not read at the caller's any more
  };
  Queued& slot(ledger::Number number) { return queue_[out_.slot(number)]; }
  // Of a header, and of a frame with its payload, as they go over the wire.
  std::size_t header_bytes() const { return protocol::kFrameHeaderBytes + (records_ ? protect::kTagBytes : 0); }
  std::size_t wire_bytes(const Queued& operation) const {
    const std::size_t payload = operation.payload.size();
    return header_bytes() + payload + (records_ ? protect::tags_of(payload) : 0);
  }
  bool acking() const { return ack_left_ > 0 || ack_now_; }
  void begin_ack();
  // What of the queue goes into the kernel next.
  std::span<const iovec> next_parts();
  std::span<const iovec> next_in_clear();
  void seal_next();
  void account_written(std::size_t bytes, std::size_t& handled);
  void report_sent();
  Status take_ack(ledger::Number delivered, std::size_t& handled);
  void release(ledger::Number from);
  void note_delivered();
  Status transport_frame(std::size_t& handled);

  // What a read still wants of the payload at hand, and then of its tag. Empty between payloads.
  std::span<std::byte> wanted(ReadBuffers& buffers) const;
  std::span<std::byte> wanted_tag() { return std::span(tag_).last(tag_left_); }
  void begin_record();
  Status payload_arrived(std::span<const std::byte> bytes, std::size_t& handled);
  Status tag_arrived(std::size_t bytes, std::size_t& handled);
  Status record_complete(std::size_t& handled);
  Status bounced(std::span<const std::byte> bytes, std::size_t& handled);
  Status header_arrived(std::size_t& handled);
  Status frame_complete(std::size_t& handled);
  void acknowledge();
  Status ended();
  Status failed(int error);
  Status unauthentic();

  Fd socket_;
  RecordsPtr records_;  // of this connection
  ClassShare& share_;
  bool stopped_ = false, connection_lost_ = false, goodbye_ = false;

  // Sending: operations by slot of the ledger; that of out_.next() has `head_written_` bytes in the kernel. Those
  // before `reported_` have had their on_sent(). What is counted in bytes is so as it goes over the wire.
  std::vector<Queued> queue_;
  Copies copies_;
  ledger::Number reported_ = 0;
  std::size_t head_written_ = 0;
  std::uint64_t queued_bytes_ = 0;
  bool blocked_ = false;
  std::array<iovec, 1 + 2 * kOperationsPerCall> parts_;
  // A kDelivered on its way into the kernel, and whether another one is due.
  std::array<std::byte, protocol::kFrameHeaderBytes> ack_;
  std::size_t ack_left_ = 0;
  bool ack_now_ = false;

  std::uint64_t unacked_bytes_ = 0;
  // Receiving: part of a header, or a header and part of its payload. A record is a piece of the payload that
  // authenticates by itself, with a tag behind it; without protection, the whole payload, and no tag.
  std::array<std::byte, protocol::kFrameHeaderBytes + protect::kTagBytes> partial_;
  std::size_t partial_bytes_ = 0;
  protocol::FrameHeader header_;
  std::span<std::byte> landing_;
  std::size_t payload_left_ = 0;
  std::size_t record_bytes_ = 0, record_left_ = 0, tag_left_ = 0;
  protect::Tag tag_;
  bool dropping_ = false, waited_for_ = false;
  std::uint32_t crc_ = 0;
  std::uint64_t acknowledged_ = 0;  // of what has been received, when we last asked the kernel to acknowledge

  ports::FlowStats counts_;
  std::uint64_t payloads_dropped_ = 0;
};

}  // namespace tensorlane::tcp
