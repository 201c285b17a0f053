// The running digest of an engine (law 6): FNV-1a over 64-bit words instead of bytes, because it runs for every frame.
#pragma once

#include <cstdint>

#include "daemon/engine/types.h"

namespace tensorlane::engine {

class Digest {
 public:
  void mix(std::uint64_t word) { hash_ = (hash_ ^ word) * 0x100000001b3ull; }
  void mix(const Descriptor& d) {
    mix(std::uint64_t{d.region} << 32 | d.generation);
    mix(d.offset);
    mix(d.length);
  }
  void mix(const protocol::FrameHeader& h) {
    mix(static_cast<std::uint64_t>(h.type) << 56 | std::uint64_t{h.flags} << 48 | std::uint64_t{h.cls.value} << 40 |
        h.payload_bytes);
    mix(std::uint64_t{h.grant} << 32 | h.tensor.value);
    mix(h.sequence.value);
    mix(h.offset);
    mix(std::uint64_t{h.slice} << 32 | h.aux);
  }
  void mix(Time now, const Event& event);
  void mix(const Action& action);
  void mix(const Send& send) {
    mix(send.header);
    mix(send.payload);
    mix(send.token);
    mix(static_cast<std::uint64_t>(send.eligible.value));
  }
  void mix(const Work& work);

  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325ull;
};

}  // namespace tensorlane::engine
