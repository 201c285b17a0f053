// Where the frames of a flow go that nobody wants.
#pragma once

#include <utility>

#include "daemon/ports/transport.h"

namespace tensorlane::ports {

// The first frame of such a flow closes it, with this cause.
class RefusingSink final : public FrameSink {
 public:
  explicit RefusingSink(Status cause) : cause_(std::move(cause)) {}
  Result<std::span<std::byte>> on_header(const protocol::FrameHeader&) override { return cause_; }
  void on_frame(const protocol::FrameHeader&) override {}
  void on_sent(std::uint64_t) override {}

 private:
  const Status cause_;
};

}  // namespace tensorlane::ports
