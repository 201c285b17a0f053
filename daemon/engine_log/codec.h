// Numbers of records as bytes (fields.h says what a codec is).
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "common/base/units.h"
#include "common/protocol/world.h"

namespace tensorlane::engine_log {

// What both ends of a log remember from record to record.
struct CodecState {
  JobId job;  // of the log's header: frames nearly always carry it
  Epoch epoch;
  Time last;
};

// Appends to a buffer of its owner.
class Encoder : public CodecState {
 public:
  explicit Encoder(std::vector<std::byte>& out) : out_(out) {}

  template <typename T>
  void number(const T& value) {
    put(static_cast<std::uint64_t>(value));
  }
  template <typename T>
  void beside(const T& value, T base) {
    put(value ^ base);
  }
  // Zigzag: small differences are short, whatever their sign.
  void time(const Time& now) {
    const std::uint64_t difference = static_cast<std::uint64_t>(now.value) - static_cast<std::uint64_t>(last.value);
    put(difference << 1 ^ (difference >> 63 != 0 ? ~std::uint64_t{0} : 0));
    last = now;
  }
  void real(float value) { put(std::bit_cast<std::uint32_t>(value)); }
  void text(const std::string& text) {
    put(text.size());
    for (const char c : text) out_.push_back(static_cast<std::byte>(c));
  }
  template <typename T, typename F>
  void list(const std::vector<T>& elements, F&& describe) {
    put(elements.size());
    for (const T& element : elements) describe(element);
  }
  void world(const protocol::SharedWorld& world) {
    put(world == nullptr ? 0 : world->size());
    for (std::uint32_t rank = 0; world != nullptr && rank < world->size(); ++rank) {
      put(world->ranks()[rank]);
      put(world->host(world->places().host(rank)).value);
    }
  }

 private:
  void put(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_.push_back(static_cast<std::byte>(value | 0x80));
    out_.push_back(static_cast<std::byte>(value));
  }

  std::vector<std::byte>& out_;
};

// Reads what it is given; past its end, and from the first number that does not fit its type, everything is zero and
// ok() is false.
class Decoder : public CodecState {
 public:
  void read(std::span<const std::byte> bytes) {
    left_ = bytes;
    ok_ = true;
  }
  bool ok() const { return ok_; }
  bool empty() const { return left_.empty(); }

  template <typename T>
  void number(T& value) {
    value = static_cast<T>(take(greatest<T>()));
  }
  template <typename T>
  void beside(T& value, T base) {
    value = static_cast<T>(take(greatest<T>()) ^ base);
  }
  void time(Time& now) {
    const std::uint64_t zigzag = take(~std::uint64_t{0});
    const std::uint64_t difference = zigzag >> 1 ^ ((zigzag & 1) != 0 ? ~std::uint64_t{0} : 0);
    now = last = Time(static_cast<std::int64_t>(static_cast<std::uint64_t>(last.value) + difference));
  }
  void real(float& value) {
    value = std::bit_cast<float>(static_cast<std::uint32_t>(take(std::numeric_limits<std::uint32_t>::max())));
  }
  void text(std::string& text) {
    const std::uint64_t size = take(left_.size());
    if (size > left_.size()) return fail();
    text.assign(reinterpret_cast<const char*>(left_.data()), size);
    left_ = left_.subspan(size);
  }
  // Every element has a byte at least, which bounds what a wrong count can cost.
  template <typename T, typename F>
  void list(std::vector<T>& elements, F&& describe) {
    const std::uint64_t size = take(left_.size());
    if (size > left_.size()) return fail();
    elements.clear();
    for (std::uint64_t i = 0; i < size && ok_; ++i) describe(elements.emplace_back());
  }
  void world(protocol::SharedWorld& world) {
    const std::uint64_t size = take(left_.size());
    std::vector<std::uint32_t> ranks;
    std::vector<HostIndex> hosts;
    for (std::uint64_t i = 0; i < size && ok_; ++i) {
      ranks.push_back(static_cast<std::uint32_t>(take(greatest<std::uint32_t>())));
      hosts.emplace_back(static_cast<std::uint16_t>(take(greatest<std::uint16_t>())));
    }
    if (!std::ranges::is_sorted(ranks, std::less_equal())) fail();
    world = ranks.empty() || !ok_ ? nullptr : std::make_shared<const protocol::World>(std::move(ranks), hosts);
  }

 private:
  template <typename T>
  static constexpr std::uint64_t greatest() {
    if constexpr (std::is_enum_v<T>) {
      return std::numeric_limits<std::underlying_type_t<T>>::max();
    } else {
      return static_cast<std::uint64_t>(std::numeric_limits<T>::max());
    }
  }

  std::uint64_t take(std::uint64_t most) {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && !left_.empty(); shift += 7) {
      const auto byte = std::to_integer<std::uint64_t>(left_.front());
      left_ = left_.subspan(1);
      const std::uint64_t bits = byte & 0x7f;
      if (shift == 63 && bits > 1) break;
      value |= bits << shift;
      if (byte < 0x80) {
        if (!ok_ || value > most) break;
        return value;
      }
    }
    fail();
    return 0;
  }
  void fail() {
    ok_ = false;
    left_ = {};
  }

  std::span<const std::byte> left_;
  bool ok_ = true;
};

}  // namespace tensorlane::engine_log
