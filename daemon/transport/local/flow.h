// A flow that is up: frames in both directions through shared memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/bounded_queue.h"
#include "common/base/status.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/handshake.h"
#include "daemon/transport/handshake/socket.h"
#include "daemon/transport/handshake/up_flow.h"
#include "daemon/transport/local/peer_memory.h"
#include "daemon/transport/local/record.h"
#include "daemon/transport/local/rings.h"
#include "daemon/transport/local/segment.h"

namespace tensorlane::local {

// Operations that a flow queues before it stops being writable.
inline constexpr std::size_t kQueueOperations = 64;
// Frames in the ring that the peer has not taken.
inline constexpr std::size_t kUntaken = 256;
// A flow moves at most about so much in one turn, in each direction.
inline constexpr std::uint64_t kBlockBytes = kMaxOperation.value;

class Flow;

// What the flows of a class share. Outlives them.
struct ClassShare {
  std::uint64_t in_flight = 0;
  Bytes window;
  bool payload_crc = false;  // payloads carry one
  bool queued = false;       // a flow has something to write
  std::vector<Flow*> flows;
  std::size_t first = 0;  // whose turn it is
};

// One thread, the lane's. Callbacks may close the flow that they come from (stop() is then called): nothing of it is
// delivered after that.
class Flow final : public handshake::UpFlow {
 public:
  struct Ends {
    handshake::Fd socket;  // its end is how either end learns that the other is gone; a byte wakes
    Segment segment;
    bool connecting = false;  // this end
    PeerMemory peer;
  };
  Flow(const ports::FlowKey& key, handshake::JobPtr job, Ends ends, ClassShare& share,
       ports::TransportCounters& counters);
  ~Flow() override;

  int fd() const { return ends_.socket.get(); }

  bool writable() const override { return !stopped_ && queued_ < kQueueOperations; }
  void send(const ports::Outgoing& operation) override;
  // Notes what the peer has taken and puts queued operations into the ring while there is room. Adds what was sent or
  // taken to `handled`. An error ends the flow.
  Status write(std::size_t& handled);
  // Delivers what has arrived, a block at most; adds the bytes to `moved` and finished frames to `handled`. An error
  // ends the flow; the end of the peer is one, once everything that it sent before is delivered.
  Status read(std::uint64_t& moved, std::size_t& handled);
  // epoll says that the socket is readable.
  void look_at_socket();

  // The caller is about to block: the peer wakes it. False: there is work already.
  bool arm();
  // The caller is awake.
  void disarm() { mine_.sleeping.store(0, std::memory_order_relaxed); }

  // Neither sends nor delivers from now on, and forgets what is queued. What the peer has not read of this end's memory
  // it will not use.
  void stop();
  ports::FlowStats stats() const override;
  ports::FlowProgress progress() const override {
    return {
        .given = counts_.frames_sent + queued_, .received = counts_.frames_received, .outstanding_bytes = in_flight_};
  }

 private:
  struct Queued {
    protocol::FrameHeader header;
    std::span<const std::byte> payload;
    std::uint64_t token = 0;
  };
  // A frame in the ring.
  struct Untaken {
    std::uint64_t end = 0;  // taken when the peer has taken so many bytes
    std::uint64_t bytes = 0;
    std::uint64_t token = 0;  // 0: nobody waits for it, or on_sent() has been called
    bool stays = false;
  };
  Status note_taken(std::size_t& handled);
  // True once the first operation of the queue is in the ring.
  bool put_first();
  void finish_first(std::size_t& handled);
  bool wants_room() const;
  void wake(std::uint32_t reason);

  Status take_record(std::uint64_t& moved, std::size_t& handled);
  Status take_payload(std::uint64_t& moved, std::size_t& handled);
  Status fetch(std::uint64_t address);
  Status frame_complete(std::size_t& handled);
  bool peer_gone() const;
  // A whole record, or a piece of a payload, or an index that cannot be, waits in the ring.
  bool readable() const { return in_.waiting() >= (in_frame_ ? 1 : kRecordBytes); }

  Ends ends_;
  ClassShare& share_;
  ports::TransportCounters& counters_;
  Side& mine_;
  Side& theirs_;
  bool stopped_ = false, hung_up_ = false;

  // Sending: a ring of operations, the first of which may be in the ring of bytes in part.
  RingWriter out_;
  std::array<Queued, kQueueOperations> queue_;
  std::size_t queue_head_ = 0, queued_ = 0;
  std::size_t put_ = 0;  // bytes of the first one's payload
  bool begun_ = false, stays_ = false;
  Ring<Untaken> untaken_;
  std::size_t unreported_ = 0;   // of them, those whose tokens wait
  std::uint64_t in_flight_ = 0;  // of this flow

  // Receiving.
  RingReader in_;
  protocol::FrameHeader header_;
  std::span<std::byte> landing_;
  std::size_t payload_left_ = 0;
  bool in_frame_ = false, dropping_ = false;

  ports::FlowStats counts_;
};

}  // namespace tensorlane::local
