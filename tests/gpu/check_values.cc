// The values that ranks give to operations.
#include <cstring>

#include "gpu_check.h"

namespace tensorlane::gpu_check {
namespace {

// splitmix64.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// A floating-point format as fields of an unsigned integer.
template <typename Word>
struct Format {
  int exponent_bits, mantissa_bits;
  Word bias() const { return static_cast<Word>((Word{1} << (exponent_bits - 1)) - 1); }
  Word infinity() const { return static_cast<Word>(((Word{1} << exponent_bits) - 1) << mantissa_bits); }
  // From 1/16 to 16, of either sign.
  Word ordinary(std::uint64_t random) const {
    const Word exponent = static_cast<Word>(bias() - 4 + random % 8);
    const Word mantissa = static_cast<Word>((random >> 8) & ((std::uint64_t{1} << mantissa_bits) - 1));
    const Word sign = static_cast<Word>(random >> 63);
    return static_cast<Word>((sign << (exponent_bits + mantissa_bits)) | (exponent << mantissa_bits) | mantissa);
  }
};

constexpr std::uint64_t kSpecialEvery = 61;

// 0: an infinity, 1: the smallest number, 2: NaN, else none; places of the ranks are apart.
int special(std::uint64_t index, int rank) {
  const std::uint64_t place = index % kSpecialEvery;
  const std::uint64_t first = 7 + 3 * static_cast<std::uint64_t>(rank % 16);
  return place >= first && place < first + 3 ? static_cast<int>(place - first) : -1;
}

template <typename Word>
void make_floats(std::span<std::byte> bytes, Format<Word> format, int rank, std::uint64_t seed) {
  auto* words = reinterpret_cast<Word*>(bytes.data());
  for (std::uint64_t i = 0; i < bytes.size() / sizeof(Word); ++i) {
    switch (special(i, rank)) {
      case 0:
        words[i] = format.infinity();
        break;
      case 1:
        words[i] = 1;
        break;
      case 2:
        words[i] = static_cast<Word>(format.infinity() | (Word{1} << (format.mantissa_bits - 1)));
        break;
      default:
        words[i] = format.ordinary(mix(seed + i));
    }
  }
}

}  // namespace

void make_values(std::span<std::byte> bytes, tl_dtype_t dtype, int rank, std::uint64_t seed) {
  seed = mix(seed * 1000 + static_cast<std::uint64_t>(rank));
  switch (dtype) {
    case TL_FLOAT32:
      return make_floats(bytes, Format<std::uint32_t>{8, 23}, rank, seed);
    case TL_FLOAT64:
      return make_floats(bytes, Format<std::uint64_t>{11, 52}, rank, seed);
    case TL_FLOAT16:
      return make_floats(bytes, Format<std::uint16_t>{5, 10}, rank, seed);
    case TL_BFLOAT16:
      return make_floats(bytes, Format<std::uint16_t>{8, 7}, rank, seed);
    default:
      break;
  }
  for (std::size_t at = 0; at < bytes.size(); at += 8) {
    const std::uint64_t word = mix(seed + at);
    std::memcpy(bytes.data() + at, &word, std::min<std::size_t>(8, bytes.size() - at));
  }
}

std::size_t size_of(tl_dtype_t dtype) {
  constexpr std::size_t kSizes[] = {4, 8, 2, 2, 1, 4, 8, 1};
  return kSizes[dtype];
}

const char* name_of(tl_dtype_t dtype) {
  constexpr const char* kNames[] = {"float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8"};
  return kNames[dtype];
}

const char* name_of(tl_op_t op) {
  constexpr const char* kNames[] = {"sum", "average", "min", "max", "product"};
  return kNames[op];
}

}  // namespace tensorlane::gpu_check
