// A flow that is up: frames in both directions over one authenticated socket.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/handshake/handshake.h"
#include "daemon/transport/handshake/socket.h"
#include "daemon/transport/handshake/watched.h"
#include "daemon/transport/tcp/window.h"

namespace tensorlane::tcp {

using handshake::Fd;
using handshake::JobPtr;
using handshake::Watched;

// Operations that a flow queues before it stops being writable.
inline constexpr std::size_t kQueueOperations = 64;
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

// One thread, the lane's. Callbacks may close the flow that they come from (stop() is then called): nothing of it is
// delivered after that.
class Flow final : public Watched {
 public:
  // `window` outlives the flow.
  Flow(ports::FlowKey key, JobPtr job, Fd socket, ClassWindow& window);
  ~Flow() override;

  const ports::FlowKey& key() const { return key_; }
  const handshake::Job& job() const { return *job_; }
  int fd() const { return socket_.get(); }

  bool writable() const { return !stopped_ && queued_ < kQueueOperations; }
  bool queue_empty() const { return queued_ == 0; }
  // Takes an operation; only when writable(). `payload_crc`: compute it.
  void enqueue(const ports::Outgoing& operation, bool payload_crc);

  // Moves queued operations into the kernel, straight from the caller's memory, until the queue is empty, the kernel
  // takes no more (blocked() is then true), or a block has gone. Adds finished operations to `handled`. An error ends
  // the flow.
  Status write(ports::FrameSink& sink, std::size_t& handled);
  bool blocked() const { return blocked_; }

  // Reads at most about a block: payloads straight to where they land. Adds finished frames to `handled`. An error ends
  // the flow.
  Status read(ports::FrameSink& sink, ReadBuffers& buffers, std::size_t& handled);

  // Neither sends nor delivers from now on, and forgets what is queued.
  void stop();
  Fd take_socket() { return std::move(socket_); }

  ports::FlowStats stats() const;
  std::uint64_t bytes_received() const { return counts_.bytes_received; }
  std::uint64_t payloads_dropped() const { return payloads_dropped_; }
  // An error that names this flow: "connection to host 3 (10.0.0.4:7111, class 1) was reset".
  Status broken(Code code, const std::string& how, const std::string& fix = {}) const;

  // The transport's notes.
  bool outstanding = false;     // is in its ClassWindow's list
  bool dirty = false;           // is in the list of flows to write
  bool watches_output = false;  // EPOLLOUT is asked for
  std::uint64_t last_turn = 0;  // when it was last served, for fairness inside a class

 private:
  struct Queued {
    std::array<std::byte, protocol::kFrameHeaderBytes> header;
    std::span<const std::byte> payload;
    std::uint64_t token = 0;
    std::size_t bytes() const { return header.size() + payload.size(); }
  };
  Queued& queued(std::size_t position) { return queue_[(head_ + position) % kQueueOperations]; }
  void account_written(std::size_t bytes, ports::FrameSink& sink, std::size_t& handled);

  // What a read still wants of the payload at hand. Empty between payloads.
  std::span<std::byte> wanted(ReadBuffers& buffers) const;
  Status payload_arrived(std::span<const std::byte> bytes, ports::FrameSink& sink, std::size_t& handled);
  Status bounced(std::span<const std::byte> bytes, ports::FrameSink& sink, std::size_t& handled);
  Status header_arrived(std::span<const std::byte, protocol::kFrameHeaderBytes> bytes, ports::FrameSink& sink,
                        std::size_t& handled);
  Status frame_complete(ports::FrameSink& sink, std::size_t& handled);
  void acknowledge();
  Status ended() const;
  Status failed(int error) const;

  const ports::FlowKey key_;
  const JobPtr job_;
  Fd socket_;
  ClassWindow& window_;
  const std::string local_, remote_;
  bool stopped_ = false;

  // Sending: a ring of operations; the first one has `head_written_` bytes in the kernel.
  std::array<Queued, kQueueOperations> queue_;
  std::size_t head_ = 0, queued_ = 0, head_written_ = 0;
  std::uint64_t queued_bytes_ = 0;
  bool blocked_ = false;

  // Receiving: part of a header, or a header and part of its payload.
  std::array<std::byte, protocol::kFrameHeaderBytes> partial_;
  std::size_t partial_bytes_ = 0;
  protocol::FrameHeader header_;
  std::span<std::byte> landing_;
  std::size_t payload_left_ = 0;
  bool dropping_ = false;
  std::uint32_t crc_ = 0;
  std::uint64_t acknowledged_ = 0;  // of what has been received, when we last asked the kernel to acknowledge

  ports::FlowStats counts_;
  std::uint64_t payloads_dropped_ = 0;
};

}  // namespace tensorlane::tcp
