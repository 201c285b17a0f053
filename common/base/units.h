// Strong types for units and for the indices that are easily confused. None converts to another.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>

namespace tensorlane {

// A number of one kind. `Tag` only tells kinds apart.
template <typename Tag, typename Rep>
struct Strong {
  using rep = Rep;
  Rep value{};

  constexpr Strong() = default;
  constexpr explicit Strong(Rep v) : value(v) {}
  constexpr auto operator<=>(const Strong&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14's mistake
};

// A quantity: a Strong that adds, subtracts and scales.
template <typename Tag, typename Rep>
struct Quantity : Strong<Tag, Rep> {
  using Strong<Tag, Rep>::Strong;
  constexpr Quantity operator+(Quantity o) const { return Quantity(this->value + o.value); }
  constexpr Quantity operator-(Quantity o) const { return Quantity(this->value - o.value); }
  constexpr Quantity operator*(Rep k) const { return Quantity(this->value * k); }
  constexpr Quantity& operator+=(Quantity o) {
    this->value += o.value;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity o) {
    this->value -= o.value;
    return *this;
  }
  constexpr auto operator<=>(const Quantity&) const = default;  // NOLINT(modernize-use-nullptr)
};

using Bytes = Quantity<struct BytesTag, std::uint64_t>;
using Duration = Quantity<struct DurationTag, std::int64_t>;  // nanoseconds
using BitsPerSecond = Quantity<struct BitsPerSecondTag, std::uint64_t>;

// Nanoseconds of a monotonic clock; the engine never asks where they come from.
struct Time : Strong<struct TimeTag, std::int64_t> {
  using Strong::Strong;
  constexpr Time operator+(Duration d) const { return Time(value + d.value); }
  constexpr Duration operator-(Time o) const { return Duration(value - o.value); }
  constexpr auto operator<=>(const Time&) const = default;  // NOLINT(modernize-use-nullptr)
};

constexpr Duration nanoseconds(std::int64_t n) {
  return Duration(n);
}
constexpr Duration microseconds(std::int64_t n) {
  return Duration(n * 1000);
}
constexpr Duration milliseconds(std::int64_t n) {
  return Duration(n * 1000000);
}
constexpr Duration seconds(std::int64_t n) {
  return Duration(n * 1000000000);
}
constexpr double to_seconds(Duration d) {
  return static_cast<double>(d.value) * 1e-9;
}

using ClassId = Strong<struct ClassIdTag, std::uint8_t>;       // data class; 0 is the most urgent
using HostIndex = Strong<struct HostIndexTag, std::uint16_t>;  // position of a host in its job, by lowest rank
using RailIndex = Strong<struct RailIndexTag, std::uint8_t>;   // one NIC of a host and its counterparts on the peers
using Rank = Strong<struct RankTag, std::uint32_t>;
using TensorId = Strong<struct TensorIdTag, std::uint32_t>;  // position in the plan of a job
using Sequence = Strong<struct SequenceTag, std::uint64_t>;  // count of operations on one tensor, from 1 (law 5)
using Epoch = Strong<struct EpochTag, std::uint32_t>;        // incarnation of a job
using JobId = Strong<struct JobIdTag, std::uint64_t>;        // hash of the job's name

// Control traffic (RTS, grants, aborts, heartbeats) has a class of its own beside the data classes.
inline constexpr ClassId kControlClass{0xff};
inline constexpr std::size_t kMaxDataClasses = 8;
inline constexpr std::size_t kMaxRails = 8;

constexpr Bytes kib(std::uint64_t n) {
  return Bytes(n << 10);
}
constexpr Bytes mib(std::uint64_t n) {
  return Bytes(n << 20);
}

// One transport operation is at most this long, however large the slice (law 8).
inline constexpr Bytes kMaxOperation = kib(256);

// Bytes per second of a link, rounded down; never zero for a rate of at least 8 bit/s.
constexpr std::uint64_t bytes_per_second(BitsPerSecond rate) {
  return rate.value / 8;
}

}  // namespace tensorlane

template <typename Tag, typename Rep>
struct std::hash<tensorlane::Strong<Tag, Rep>> {
  std::size_t operator()(const tensorlane::Strong<Tag, Rep>& s) const noexcept { return std::hash<Rep>{}(s.value); }
};
