// What every fuzzer needs: its input read from the front, and what must be true of every error.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>

#include "common/base/assert.h"
#include "common/base/status.h"

namespace tensorlane::fuzz {

// Past the end everything reads as zeros, so that every input means something.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : left_(reinterpret_cast<const std::byte*>(data), size) {}

  bool empty() const { return left_.empty(); }
  template <typename T>
  T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const auto from = bytes(sizeof value);
    if (!from.empty()) std::memcpy(&value, from.data(), from.size());
    return value;
  }
  // The next bytes, fewer at the end.
  std::span<const std::byte> bytes(std::size_t most) {
    const auto taken = left_.first(std::min(most, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }
  std::span<const std::byte> rest() const { return left_; }

 private:
  std::span<const std::byte> left_;
};

// A refusal says what was wrong.
inline void expect_explained(const Status& status) {
  TL_ASSERT(!status.ok());
  TL_ASSERT(!status.what().empty());
}

}  // namespace tensorlane::fuzz
