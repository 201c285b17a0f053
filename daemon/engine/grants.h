// Grants: permissions to send bytes that exist now, with a place to land (laws 2, 3). The receiver of the payload
// chooses the id.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/units.h"
#include "common/protocol/frame.h"

namespace tensorlane::engine {

// How much of an area has arrived: in operations of kMaxOperation, the last one perhaps shorter, each once and in any
// order. A slice that is demoted on its way (law 11) travels in two flows, and nothing orders one behind the other.
struct Extent {
  static constexpr std::uint64_t kMaxLength = 64 * kMaxOperation.value;

  std::uint64_t length = 0;   // at most kMaxLength
  std::uint64_t arrived = 0;  // bit i: the i-th operation

  bool complete() const;
  // Whether [offset, offset + bytes) may be written: one operation that has not arrived. A text that names the fault,
  // or null.
  const char* check(std::uint64_t offset, std::uint64_t bytes) const;
  // Counts it as arrived. A text that names the fault (and nothing is counted), or null.
  const char* take(std::uint64_t offset, std::uint64_t bytes);
};

struct Grant {
  enum class Kind : std::uint8_t {
    kStaging,  // one peer's contribution to one slice
    kResult,   // the results of an operation: every slice from the peer that the plan's route names
  };
  Kind kind{};
  TensorId tensor;
  Sequence sequence;
  HostIndex peer;            // kStaging: the only one who may use it
  std::uint32_t source = 0;  // kStaging: index of the contribution
};

// At most `capacity` grants at a time. An id is index | generation << kIndexBits, and never 0. Ids are given out in the
// order in which their index came free, so a stale id stays recognisable for as long as possible: 4095 uses of its
// index.
class GrantTable {
 public:
  static constexpr std::uint32_t kIndexBits = protocol::kGrantIndexBits;
  static constexpr std::uint32_t kMaxCapacity = 1u << kIndexBits;

  // Makes room for `capacity` (at most kMaxCapacity) grants; what is given stays given. Allocates.
  void grow(std::uint32_t capacity);
  std::uint32_t capacity() const { return static_cast<std::uint32_t>(slots_.size()); }
  std::uint32_t in_use() const { return in_use_; }

  // The id. The caller has made sure that there is room.
  std::uint32_t give(const Grant& grant);
  // Null when the id is stale or never was.
  const Grant* find(std::uint32_t id) const;
  // From now on the id is stale. It must be live.
  void retire(std::uint32_t id);

 private:
  static constexpr std::uint32_t kNone = ~0u;
  struct Slot {
    Grant grant;
    std::uint32_t generation = 1;
    std::uint32_t next_free = kNone;
    bool live = false;
  };
  std::vector<Slot> slots_;
  std::uint32_t first_free_ = kNone, last_free_ = kNone;
  std::uint32_t in_use_ = 0;

  void put_free(std::uint32_t index);
};

}  // namespace tensorlane::engine
