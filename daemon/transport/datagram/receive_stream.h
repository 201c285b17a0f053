// The receiving end of a flow: pieces of the stream, in whatever order they come and however often, become frames,
// whose payloads land where the sink says. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/protocol/frame.h"
#include "daemon/ports/transport.h"
#include "daemon/transport/datagram/ranges.h"

namespace tensorlane::datagram {

class ReceiveStream {
 public:
  // A piece of the stream that ends before `limit`, which is as far as the peer may send. The sink is called as
  // FrameSink says: a header when the frame before it has been delivered, a frame once it is whole. What came
  // before is passed over. Bytes behind a frame that is under way are kept: no more than the peer may send, in at most
  // 8192 pieces, each in memory of less than four times its size, 128 bytes at least. False: failure() says why, and
  // nothing more may be given. kCorrupt: a header or checksum is wrong, the piece reaches beyond the limit, or there
  // are too many; or what the sink says.
  [[nodiscard]] bool take(std::uint64_t offset, std::span<const std::byte> bytes, std::uint64_t limit,
                          ports::FrameSink& sink);

  const Status& failure() const { return failure_; }

  // Frames that were delivered, or dropped since the sink had no place for them.
  std::uint64_t frames() const { return frames_done_; }
  // Bytes that have come, each counted once.
  std::uint64_t come() const { return come_bytes_; }

 private:
  struct Frame {
    protocol::FrameHeader header;
    Range payload;
    std::span<std::byte> landing;
    bool dropped = false;
  };

  // Bytes that wait for the frame under way, in memory that is used again.
  struct Held {
    std::uint64_t begin = 0;
    std::vector<std::byte> bytes;
  };

  bool place(Range range, const std::byte* bytes, ports::FrameSink& sink);
  bool place_held(ports::FrameSink& sink);
  bool begin_frame(ports::FrameSink& sink);
  bool deliver(ports::FrameSink& sink);
  void hold(Range range, const std::byte* bytes);
  bool fail(Status status);

  std::uint64_t delivered_ = 0, come_bytes_ = 0, frames_done_ = 0;
  RangeSet come_;               // above delivered_
  std::optional<Frame> frame_;  // under way: its header is there, and its payload is not
  // The header behind it.
  std::uint64_t header_at_ = 0;
  std::array<std::byte, protocol::kFrameHeaderBytes> header_{};
  std::size_t header_bytes_ = 0;
  std::vector<Held> held_;                                    // the last one begins first
  std::array<std::vector<std::vector<std::byte>>, 3> spare_;  // memory for the next ones, by size
  Status failure_;
};

}  // namespace tensorlane::datagram
