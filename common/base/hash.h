// FNV-1a, 64 bits: digests of plans and event logs, ids of names. Not for anything an attacker may choose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace tensorlane {

class Fnv1a {
 public:
  constexpr void add_byte(std::uint8_t byte) { hash_ = (hash_ ^ byte) * 0x100000001b3ull; }
  // The bytes of a number, as they lie in memory (little-endian on every machine we run on).
  template <typename T>
  void add(T number) {
    static_assert(std::is_arithmetic_v<T>);
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&number);
    for (std::size_t i = 0; i < sizeof number; ++i) add_byte(bytes[i]);
  }
  void add_text(std::string_view text) {
    for (char c : text) add_byte(static_cast<std::uint8_t>(c));
    add(text.size());
  }
  constexpr std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325ull;
};

inline std::uint64_t fnv1a(std::string_view text) {
  Fnv1a h;
  h.add_text(text);
  return h.value();
}

}  // namespace tensorlane
