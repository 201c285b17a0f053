// Which bytes of one side of a transfer are copied next. The tensor's buffer has parts (common/protocol/parts.h); the
// side is a range of it, of which parts become available bit by bit and in any order. Plain arithmetic.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "common/protocol/parts.h"

namespace tensorlane::client::cuda {

class Pieces {
 public:
  // How a buffer is divided: one part where `count` is 1. Parts are taken in turns from as many `shares` of the buffer:
  // what hosts own of a tensor are shares of it, and none of them should wait for the others'.
  struct Layout {
    std::uint64_t part_bytes = 0;
    std::uint32_t count = 1, shares = 1;
  };

  // [offset, offset + bytes) of the buffer. Nothing of it is available.
  void reset(const Layout& layout, std::uint64_t offset, std::uint64_t bytes) {
    *this = {};
    layout_ = layout;
    begin_ = offset;
    end_ = offset + bytes;
  }
  std::uint64_t all() const { return protocol::PartRun{0, layout_.count}.mask(); }

  // These parts may be copied. What was available before is not copied again.
  void add(std::uint64_t parts) {
    parts &= all() & ~seen_;
    seen_ |= parts;
    for (; parts != 0; parts &= parts - 1) {
      const auto part = static_cast<std::uint32_t>(std::countr_zero(parts));
      if (first(part) < last(part)) available_ |= std::uint64_t{1} << part;
    }
  }
  // Whether nothing that is available is left to be issued.
  bool empty() const { return available_ == 0; }

  struct Slice {
    std::uint64_t offset = 0, bytes = 0;  // from where the side begins
    std::uint64_t ends = 0;               // parts of which this is the last slice
  };
  // Of at most `most` bytes, which are issued with that. Not while it is empty().
  Slice next(std::uint64_t most) {
    std::uint32_t part = within_ > 0 ? current_ : choose();
    Slice slice{first(part) + within_ - begin_, 0, 0};
    while (slice.bytes < most) {
      const std::uint64_t bytes = std::min(most - slice.bytes, last(part) - first(part) - within_);
      slice.bytes += bytes;
      within_ += bytes;
      current_ = part;
      if (first(part) + within_ < last(part)) break;
      slice.ends |= std::uint64_t{1} << part;
      available_ &= ~(std::uint64_t{1} << part);
      within_ = 0;
      if (++part >= layout_.count || (available_ >> part & 1) == 0) break;
    }
    return slice;
  }
  // A slice has been copied.
  void copied(const Slice& slice) { copied_ += slice.bytes; }
  bool all_copied() const { return copied_ == end_ - begin_; }

 private:
  std::uint64_t first(std::uint32_t part) const { return std::max(begin_, part * layout_.part_bytes); }
  std::uint64_t last(std::uint32_t part) const {
    return part + 1 == layout_.count ? end_ : std::min(end_, (part + 1) * layout_.part_bytes);
  }
  std::uint32_t choose() const {
    const std::uint32_t share = (layout_.count + layout_.shares - 1) / layout_.shares;
    const auto lowest = static_cast<std::uint32_t>(std::countr_zero(available_));
    std::uint32_t best = lowest;
    for (std::uint64_t left = available_; left != 0; left &= left - 1) {
      const auto part = static_cast<std::uint32_t>(std::countr_zero(left));
      if (part % share < best % share) best = part;
    }
    return best;
  }

  Layout layout_;
  std::uint64_t begin_ = 0, end_ = 0, copied_ = 0;
  std::uint64_t seen_ = 0, available_ = 0;
  std::uint32_t current_ = 0;
  std::uint64_t within_ = 0;  // of part current_, what has been issued, unless that is all or nothing
};

}  // namespace tensorlane::client::cuda
