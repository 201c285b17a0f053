// Memory as the engine and the transports name it: descriptors, never pointers (law 6).
#pragma once

#include <cstdint>

namespace tensorlane {

// A piece of a registered region. The generation makes a descriptor of memory that was given back harmless: it resolves
// to nothing.
struct Descriptor {
  std::uint32_t region = 0;
  std::uint32_t generation = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;

  // The part [from, from + bytes) of this piece. The caller stays inside.
  constexpr Descriptor slice(std::uint64_t from, std::uint64_t bytes) const {
    return {region, generation, offset + from, bytes};
  }
  bool operator==(const Descriptor&) const = default;
};

}  // namespace tensorlane
