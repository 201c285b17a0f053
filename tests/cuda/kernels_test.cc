// The kernels of the client library, as they run on a CPU, against the kernels of the daemon: bit for bit.
#include "client-lib/src/cuda/kernels.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client-lib/src/cuda/kernels/on_host.h"
#include "daemon/reduce/cpu_reducer.h"
#include "gtest/gtest.h"

namespace tensorlane::client::cuda {
namespace {

using Bytes = std::vector<std::byte>;

constexpr Dtype kDtypes[] = {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBfloat16,
                             Dtype::kInt8,    Dtype::kInt32,   Dtype::kInt64,   Dtype::kUint8};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax};

// What is special about an element type's bits: how many there are, and those of infinity.
struct Format {
  unsigned bits;
  std::uint64_t infinity;
};
Format format_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return {32, 0x7f800000};
    case Dtype::kFloat64:
      return {64, 0x7ff0000000000000};
    case Dtype::kFloat16:
      return {16, 0x7c00};
    case Dtype::kBfloat16:
      return {16, 0x7f80};
    default:
      return {static_cast<unsigned>(8 * dtype_size(dtype)), 0};
  }
}

// The exponent's lowest bit, and the mask of the bits below it.
std::uint64_t unit(const Format& format) {
  return format.infinity & (~format.infinity + 1);
}
std::uint64_t random_sign(const Format& format, std::mt19937_64& random) {
  return (random() & 1) << (format.bits - 1);
}

// Numbers of a like size, so that they add up; any bits of an integer.
std::uint64_t usual(const Format& format, std::mt19937_64& random) {
  if (format.infinity == 0) return random();
  const std::uint64_t bias = (format.infinity / unit(format)) / 2;
  return random_sign(format, random) | ((bias - 2 + random() % 4) * unit(format) + random() % unit(format));
}

// All but NaNs: zeros, subnormals, the smallest and the largest numbers, infinities, any other ones.
std::uint64_t any_number(const Format& format, std::mt19937_64& random) {
  if (format.infinity == 0) return random();
  const std::uint64_t magnitudes[] = {0,
                                      random() % unit(format),
                                      unit(format) + random() % 4,
                                      random() % format.infinity,
                                      format.infinity - 1 - random() % 4,
                                      format.infinity};
  const std::uint64_t kind = random() % 24;
  return kind < std::size(magnitudes) ? random_sign(format, random) | magnitudes[kind] : usual(format, random);
}

// Quiet and signalling ones, with any payload.
std::uint64_t any_nan(const Format& format, std::mt19937_64& random) {
  return random_sign(format, random) | (format.infinity + 1 + random() % (unit(format) - 1));
}
bool is_nan(const Format& format, std::uint64_t bits) {
  return format.infinity != 0 && (bits & ((std::uint64_t{1} << (format.bits - 1)) - 1)) > format.infinity;
}

// Where two NaNs meet in a sum or a product, the daemon's own kernels differ in which of them they keep: the compiler
// may swap the operands. kNeverMeet: an element with a NaN has it in one source, and no other comes out of the numbers
// of the others.
enum class Nans { kNeverMeet, kAnywhere };

// Sources of one kernel.
struct Sources {
  Sources(Dtype dtype_, std::size_t count, std::size_t elements_, Nans nans, std::uint64_t seed)
      : dtype(dtype_), elements(elements_), memory(count, Bytes(elements * dtype_size(dtype))) {
    const Format format = format_of(dtype);
    std::mt19937_64 random(seed);
    for (std::size_t i = 0; i < elements; ++i) {
      const bool has_nan = format.infinity != 0 && random() % 4 == 0;
      const std::size_t where = random() % count;
      for (std::size_t k = 0; k < count; ++k) {
        const bool here = has_nan && (nans == Nans::kAnywhere ? random() % 3 == 0 : k == where);
        const bool number = !has_nan || nans == Nans::kAnywhere;
        put(k, i, here ? any_nan(format, random) : number ? any_number(format, random) : usual(format, random));
      }
    }
  }
  void put(std::size_t source, std::size_t i, std::uint64_t bits) {
    std::memcpy(memory[source].data() + i * dtype_size(dtype), &bits, dtype_size(dtype));
  }
  Bytes by_reducer(ports::Reducer& reducer, ReduceOp op, double divisor) const {
    std::vector<ports::ReduceSource> sources;
    for (const Bytes& bytes : memory) sources.push_back({bytes.data(), dtype});
    Bytes out(elements * dtype_size(dtype));
    reducer.reduce(out.data(), dtype, sources, elements, op, divisor);
    return out;
  }
  bool by_kernel(void* out, const std::string& name, double divisor) const {
    // Addresses that must not be looked at.
    KernelSources sources;
    for (auto& at : sources.at) at = 1;
    for (std::size_t k = 0; k < memory.size(); ++k) sources.at[k] = reinterpret_cast<std::uintptr_t>(memory[k].data());
    return combine_on_host(name, out, sources, static_cast<std::uint32_t>(memory.size()), elements, divisor);
  }

  Dtype dtype;
  std::size_t elements;
  std::vector<Bytes> memory;
};

std::uint64_t bits_at(const Bytes& bytes, std::size_t element, std::size_t size) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes.data() + element * size, size);
  return bits;
}

// What of a NaN's bits is left open: whether it is quiet, or all of them.
enum class Open { kNothing, kWhetherQuiet, kAll };

bool same(std::uint64_t a, std::uint64_t b, const Format& format, Open open) {
  if (a == b || open == Open::kNothing || !is_nan(format, a) || !is_nan(format, b)) return a == b;
  return open == Open::kAll || (a ^ b) == unit(format) / 2;
}

void expect_same(const Bytes& got, const Bytes& want, const Sources& sources, Open open, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  const std::size_t size = dtype_size(sources.dtype);
  const Format format = format_of(sources.dtype);
  for (std::size_t i = 0; i < sources.elements; ++i) {
    const std::uint64_t is = bits_at(got, i, size), should = bits_at(want, i, size);
    if (same(is, should, format, open)) continue;
    std::string of;
    for (const Bytes& bytes : sources.memory) of += fmt::format(" {:#x}", bits_at(bytes, i, size));
    FAIL() << fmt::format("{}, element {} is {:#x}, expected {:#x} of{}", what, i, is, should, of);
  }
}

// Where nothing is added or multiplied, some compilers divide by 1 in the daemon, which makes a signalling NaN quiet; a
// mere copy stays one.
Open open_of(ReduceOp op, std::size_t count, double divisor, Nans nans) {
  if (count == 1 && divisor == 1) return Open::kNothing;
  if (count == 1 || op == ReduceOp::kMin || op == ReduceOp::kMax) return Open::kWhetherQuiet;
  return nans == Nans::kNeverMeet ? Open::kNothing : Open::kAll;
}

class Kernels : public ::testing::TestWithParam<std::string> {
 protected:
  // Beside the sources, and in place of the first and of the last.
  void check(Dtype dtype, ReduceOp op, std::size_t count, std::size_t elements, double divisor) {
    for (const Nans nans : {Nans::kNeverMeet, Nans::kAnywhere}) {
      Sources sources(dtype, count, elements, nans, elements * 100 + count);
      check(sources, op, divisor, open_of(op, count, divisor, nans));
    }
  }
  void check(Sources& sources, ReduceOp op, double divisor, Open open) {
    const Dtype dtype = sources.dtype;
    const std::size_t count = sources.memory.size(), elements = sources.elements;
    const std::string name = kernel_name(op, dtype);
    const std::string what = fmt::format("{} of {} sources, {} elements, divisor {}", name, count, elements, divisor);
    const Bytes want = sources.by_reducer(*reducer_, op, divisor);
    Bytes out(want.size());
    ASSERT_TRUE(sources.by_kernel(out.data(), name, divisor)) << what;
    expect_same(out, want, sources, open, what);
    for (const std::size_t k : {std::size_t{0}, count - 1}) {
      const Bytes before = sources.memory[k];
      ASSERT_TRUE(sources.by_kernel(sources.memory[k].data(), name, divisor)) << what;
      const Bytes after = std::exchange(sources.memory[k], before);
      expect_same(after, want, sources, open, what + ", in place");
    }
  }

  std::unique_ptr<ports::Reducer> reducer_ = reduce::make_cpu_reducer(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Reducers, Kernels, ::testing::ValuesIn(reduce::available_kernels()),
                         [](const auto& info) { return info.param; });

TEST_P(Kernels, GiveTheBitsOfTheDaemon) {
  for (const Dtype dtype : kDtypes) {
    for (const ReduceOp op : kOps) {
      for (std::size_t count = 1; count <= kMaxSources; ++count) {
        for (const std::size_t elements : {0u, 1u, 7u, 1003u}) check(dtype, op, count, elements, 1);
        ASSERT_FALSE(HasFatalFailure());
      }
    }
  }
}

// Among the divisors: one that is 1 in float32, and not in float64, one that is infinite in float32, and zero.
TEST_P(Kernels, DivideAsTheDaemonDoes) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBfloat16}) {
    for (const ReduceOp op : kOps) {
      for (const double divisor : {2.0, 3.0, 7.0, 64.0, 1e-3, -1.0, 1 + 1e-12, 1e300, 0.0}) {
        for (const std::size_t count : {1u, 2u, 3u, 8u, 16u}) check(dtype, op, count, 1003, divisor);
        ASSERT_FALSE(HasFatalFailure());
      }
    }
  }
}

TEST(KernelNames, AreThoseOfTheOperationAndTheElementType) {
  EXPECT_EQ(kernel_name(ReduceOp::kSum, Dtype::kFloat32), "tl_sum_float32");
  EXPECT_EQ(kernel_name(ReduceOp::kAverage, Dtype::kFloat16), "tl_sum_float16");
  EXPECT_EQ(kernel_name(ReduceOp::kMin, Dtype::kBfloat16), "tl_min_bfloat16");
  EXPECT_EQ(kernel_name(ReduceOp::kProduct, Dtype::kUint8), "tl_product_uint8");
  EXPECT_FALSE(combine_on_host("tl_sum_float", nullptr, {}, 1, 0, 1));
  EXPECT_FALSE(combine_on_host("", nullptr, {}, 1, 0, 1));
}

// A fat binary begins with a number that marks it and, at byte 6, how long its header is, and what follows that.
TEST(KernelImage, IsAWholeFatBinary) {
  const std::span<const std::byte> image = kernel_image();
  if (image.empty()) GTEST_SKIP() << "this build has no GPU kernels: CMake says why";
  ASSERT_GT(image.size(), 16u);
  std::uint32_t mark = 0;
  std::uint16_t header = 0;
  std::uint64_t rest = 0;
  std::memcpy(&mark, image.data(), sizeof mark);
  std::memcpy(&header, image.data() + 6, sizeof header);
  std::memcpy(&rest, image.data() + 8, sizeof rest);
  EXPECT_EQ(mark, 0xba55ed50);
  EXPECT_EQ(header + rest, image.size());
}

}  // namespace
}  // namespace tensorlane::client::cuda
