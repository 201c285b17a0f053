// Copies of short payloads that a flow may have to send again.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>

namespace tensorlane::tcp {

// A ring of bytes: taken and given back in the same order. The memory is there from the start, but the kernel backs it
// page by page as it is used. One thread.
class Copies {
 public:
  // Payloads up to this are worth a copy: it costs less than waiting for the peer's word.
  static constexpr std::size_t kLongest = 32768;

  explicit Copies(std::size_t bytes) : bytes_(bytes), ring_(new std::byte[bytes]) {}

  // Room for `bytes` in one piece, if there is; at most kLongest.
  std::optional<std::span<std::byte>> take(std::size_t bytes) {
    if (bytes > kLongest) return std::nullopt;
    if (used_ == 0) head_ = tail_ = 0;
    const bool wrapped = used_ > 0 && head_ <= tail_;
    const std::size_t end = wrapped ? tail_ : bytes_;
    std::size_t at = head_;
    if (at + bytes > end) {
      if (wrapped || bytes > tail_) return std::nullopt;
      at = 0;
    }
    used_ += bytes;
    head_ = at + bytes;
    return std::span(ring_.get() + at, bytes);
  }
  // The oldest one taken is not needed any more.
  void give_back(std::span<const std::byte> copy) {
    used_ -= copy.size();
    tail_ = static_cast<std::size_t>(copy.data() - ring_.get()) + copy.size();
  }

 private:
  const std::size_t bytes_;
  const std::unique_ptr<std::byte[]> ring_;
  std::size_t head_ = 0, tail_ = 0, used_ = 0;
};

}  // namespace tensorlane::tcp
