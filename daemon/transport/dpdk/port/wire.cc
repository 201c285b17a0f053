#include "daemon/transport/dpdk/port/wire.h"

namespace tensorlane::dpdk {

std::uint64_t add_to_sum(std::uint64_t sum, std::span<const std::byte> bytes) {
  // Four sums of 32-bit words side by side; carries gather in the upper halves.
  std::uint64_t sums[4] = {};
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 16; at += 16, left -= 16) {
    std::uint32_t words[4];
    std::memcpy(words, at, sizeof words);
    for (int i = 0; i < 4; ++i) sums[i] += words[i];
  }
  for (const std::uint64_t one : sums) sum += one;
  for (; left >= 2; at += 2, left -= 2) {
    std::uint16_t word;
    std::memcpy(&word, at, sizeof word);
    sum += word;
  }
  if (left == 1) {
    std::uint16_t word = 0;
    std::memcpy(&word, at, 1);
    sum += word;
  }
  return sum;
}

std::uint64_t add_at(std::uint64_t sum, std::span<const std::byte> bytes, std::size_t before) {
  if (before % 2 == 0) return add_to_sum(sum, bytes);
  const std::uint16_t own = fold_sum(add_to_sum(0, bytes));
  return sum + static_cast<std::uint16_t>(own << 8 | own >> 8);
}

std::uint64_t pseudo_header_sum(const IpAddress& source, const IpAddress& destination, std::uint8_t protocol,
                                std::uint32_t bytes) {
  std::byte tail[8] = {};
  store32(tail, bytes);
  store8(tail + 7, protocol);
  // The zeros behind an IPv4 address add nothing.
  std::uint64_t sum = add_to_sum(0, std::as_bytes(std::span(source.bytes)));
  sum = add_to_sum(sum, std::as_bytes(std::span(destination.bytes)));
  return add_to_sum(sum, tail);
}

std::uint16_t fold_sum(std::uint64_t sum) {
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(sum);
}

}  // namespace tensorlane::dpdk
