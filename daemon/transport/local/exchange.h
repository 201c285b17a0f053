// What this transport adds to the handshake: the connecting end makes the segment and passes it along, and each end
// says how its memory can be read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "daemon/transport/handshake/handshake.h"
#include "daemon/transport/local/peer_memory.h"
#include "daemon/transport/local/segment.h"

namespace tensorlane::local {

struct Parameters {
  std::uint32_t version = kSegmentVersion;
  std::uint32_t ring_bytes = kRingBytes;
  MemoryProbe probe;
};
static_assert(sizeof(Parameters) == 24 && std::has_unique_object_representations_v<Parameters>);

class SegmentExchange final : public handshake::Exchange {
 public:
  // Errors: those of Segment::create() and adopt(), kVersionMismatch.
  Result<std::vector<std::byte>> offer(std::span<const std::byte> peer) override;
  Status accept(std::span<const std::byte> peer) override;
  int descriptor() const override { return segment_.descriptor(); }
  void take_descriptor(handshake::Fd descriptor) override { descriptor_ = std::move(descriptor); }

  // After accept().
  Segment take_segment();
  const MemoryProbe& peer_probe() const { return peer_probe_; }

 private:
  handshake::Fd descriptor_;  // of the peer's segment, until it is mapped
  Segment segment_;
  MemoryProbe peer_probe_;
};

}  // namespace tensorlane::local
