// The kernels of the client library, as they run on a CPU, against the kernels of the daemon: bit for bit.
#include "client-lib/src/cuda/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client-lib/src/cuda/kernels/on_host.h"
#include "common/base/half.h"
#include "daemon/reduce/cpu_reducer.h"
#include "gtest/gtest.h"

namespace tensorlane::client::cuda {
namespace {

using Bytes = std::vector<std::byte>;

constexpr Dtype kDtypes[] = {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBfloat16,
                             Dtype::kInt8,    Dtype::kInt32,   Dtype::kInt64,   Dtype::kUint8};
constexpr Dtype kFloats[] = {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBfloat16};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax};

// What numbers of this type are when they have been combined.
Dtype accumulator_of(Dtype dtype) {
  return dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16 ? Dtype::kFloat32 : dtype;
}

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
  Bytes by_reducer(ports::Reducer& reducer, Dtype out_dtype, ReduceOp op, double divisor) const {
    std::vector<ports::ReduceSource> sources;
    for (const Bytes& bytes : memory) sources.push_back({bytes.data(), dtype});
    Bytes out(elements * dtype_size(out_dtype));
    reducer.reduce(out.data(), out_dtype, sources, elements, op, divisor);
    return out;
  }
  bool by_kernel(void* out, const std::string& name) const {
    // Addresses that must not be looked at.
    KernelSources sources;
    for (auto& at : sources.at) at = 1;
    for (std::size_t k = 0; k < memory.size(); ++k) sources.at[k] = reinterpret_cast<std::uintptr_t>(memory[k].data());
    return combine_on_host(name, out, sources, static_cast<std::uint32_t>(memory.size()), elements);
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

// Elements of type `dtype`.
void expect_same(const Bytes& got, const Bytes& want, Dtype dtype, const Sources& sources, Open open,
                 const std::string& what) {
  const std::size_t size = dtype_size(dtype);
  ASSERT_EQ(got.size(), sources.elements * size);
  ASSERT_EQ(want.size(), sources.elements * size);
  const Format format = format_of(dtype);
  for (std::size_t i = 0; i < sources.elements; ++i) {
    const std::uint64_t is = bits_at(got, i, size), should = bits_at(want, i, size);
    if (same(is, should, format, open)) continue;
    std::string of;
    for (const Bytes& bytes : sources.memory) of += fmt::format(" {:#x}", bits_at(bytes, i, dtype_size(sources.dtype)));
    FAIL() << fmt::format("{}, element {} is {:#x}, expected {:#x} of{}", what, i, is, should, of);
  }
}

// Where nothing is added or multiplied, some compilers divide by 1 in the daemon, which makes a signalling NaN quiet; a
// mere copy stays one.
Open open_of(Dtype dtype, ReduceOp op, std::size_t count, Nans nans) {
  if (count == 1) return accumulator_of(dtype) == dtype ? Open::kNothing : Open::kWhetherQuiet;
  if (op == ReduceOp::kMin || op == ReduceOp::kMax) return Open::kWhetherQuiet;
  return nans == Nans::kNeverMeet ? Open::kNothing : Open::kAll;
}

// ---- what is finished ----

// The positive number of these bits of a 16-bit type. What takes the place of infinity is the number that would come
// next if there were a larger exponent.
double number_of(Dtype dtype, std::uint64_t bits) {
  if (bits == format_of(dtype).infinity) return std::ldexp(1.0, dtype == Dtype::kFloat16 ? 16 : 128);
  const auto small = static_cast<std::uint16_t>(bits);
  return dtype == Dtype::kFloat16 ? half_to_float(small) : bfloat_to_float(small);
}

// A float32 whose quotient by the divisor is a number of the 16-bit type (any of them, subnormal ones and the largest
// included), halfway to the next one, or a little beside that.
float near_number(Dtype dtype, double divisor, std::mt19937_64& random) {
  const Format format = format_of(dtype);
  const std::uint64_t magnitude = random() % (random() % 2 == 0 ? format.infinity : 2 * unit(format));
  const std::uint64_t bits = random() % 8 == 0 ? format.infinity - 1 - random() % 3 : magnitude;
  const double low = number_of(dtype, bits), high = number_of(dtype, bits + 1);
  const double of[] = {low, (low + high) / 2, high};
  const double limit = std::numeric_limits<float>::max();
  const auto value = static_cast<float>(std::clamp(of[random() % 3] * divisor, -limit, limit));
  const float beside[] = {value, value, std::nextafter(value, 0.f), std::nextafter(value, value * 2)};
  return random() % 2 == 0 ? -beside[random() % 4] : beside[random() % 4];
}

// Of the accumulator's type: NaNs, any other numbers, and those that are near what they are rounded to.
Sources to_finish(Dtype dtype, double divisor, std::size_t elements) {
  const Dtype wide = accumulator_of(dtype);
  Sources source(wide, 1, elements, Nans::kAnywhere, elements + static_cast<std::size_t>(dtype));
  std::mt19937_64 random(elements);
  for (std::size_t i = 0; wide != dtype && i < elements; ++i) {
    if (random() % 4 != 0) source.put(0, i, bits_of_float(near_number(dtype, divisor, random)));
  }
  return source;
}

class Kernels : public ::testing::TestWithParam<std::string> {
 protected:
  // Beside the sources, and in place of the first and of the last.
  void check(Dtype dtype, ReduceOp op, std::size_t count, std::size_t elements) {
    for (const Nans nans : {Nans::kNeverMeet, Nans::kAnywhere}) {
      Sources sources(dtype, count, elements, nans, elements * 100 + count);
      check(sources, op, open_of(dtype, op, count, nans));
    }
  }
  void check(Sources& sources, ReduceOp op, Open open) {
    const Dtype dtype = sources.dtype, wide = accumulator_of(dtype);
    const std::size_t count = sources.memory.size();
    const std::string name = kernel_name(op, dtype);
    const std::string what = fmt::format("{} of {} sources, {} elements", name, count, sources.elements);
    const Bytes want = sources.by_reducer(*reducer_, wide, op, 1);
    Bytes out(want.size());
    ASSERT_TRUE(sources.by_kernel(out.data(), name)) << what;
    expect_same(out, want, wide, sources, open, what);
    if (wide != dtype) return;
    for (const std::size_t k : {std::size_t{0}, count - 1}) {
      const Bytes before = sources.memory[k];
      ASSERT_TRUE(sources.by_kernel(sources.memory[k].data(), name)) << what;
      const Bytes after = std::exchange(sources.memory[k], before);
      expect_same(after, want, wide, sources, open, what + ", in place");
    }
  }
  void check_finish(Dtype dtype, double divisor, std::size_t elements) {
    Sources source = to_finish(dtype, divisor, elements);
    const std::string name = finish_kernel_name(dtype);
    const std::string what = fmt::format("{} of {} elements, divisor {}", name, elements, divisor);
    const Bytes want = source.by_reducer(*reducer_, dtype, ReduceOp::kSum, divisor);
    const bool copies = source.dtype == dtype && divisor == 1;
    const Open open = copies ? Open::kNothing : Open::kWhetherQuiet;
    Bytes out(want.size());
    ASSERT_TRUE(finish_on_host(name, out.data(), source.memory[0].data(), elements, divisor)) << what;
    expect_same(out, want, dtype, source, open, what);
    if (source.dtype != dtype) return;
    Bytes in_place = source.memory[0];
    ASSERT_TRUE(finish_on_host(name, in_place.data(), in_place.data(), elements, divisor)) << what;
    expect_same(in_place, want, dtype, source, open, what + ", in place");
  }
  // Both kernels, against the daemon that does it all at once.
  void check_average(Dtype dtype, ReduceOp op, std::size_t count, double divisor) {
    const Sources sources(dtype, count, 1003, Nans::kNeverMeet, count);
    const std::string what = fmt::format("{} of {} sources, divisor {}", kernel_name(op, dtype), count, divisor);
    const Bytes want = sources.by_reducer(*reducer_, dtype, op, divisor);
    Bytes wide(sources.elements * dtype_size(accumulator_of(dtype))), out(want.size());
    ASSERT_TRUE(sources.by_kernel(wide.data(), kernel_name(op, dtype))) << what;
    ASSERT_TRUE(finish_on_host(finish_kernel_name(dtype), out.data(), wide.data(), sources.elements, divisor)) << what;
    const bool computes = count > 1 && (op == ReduceOp::kSum || op == ReduceOp::kProduct);
    expect_same(out, want, dtype, sources, computes ? Open::kNothing : Open::kWhetherQuiet, what);
  }

  std::unique_ptr<ports::Reducer> reducer_ = reduce::make_cpu_reducer(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Reducers, Kernels, ::testing::ValuesIn(reduce::available_kernels()),
                         [](const auto& info) { return info.param; });

TEST_P(Kernels, CombineAsTheDaemonDoes) {
  for (const Dtype dtype : kDtypes) {
    for (const ReduceOp op : kOps) {
      for (std::size_t count = 1; count <= kMaxSources; ++count) {
        for (const std::size_t elements : {0u, 1u, 7u, 1003u}) check(dtype, op, count, elements);
        ASSERT_FALSE(HasFatalFailure());
      }
    }
  }
}

// Among the divisors: one that is 1 in float32, and not in float64, one that is infinite in float32, and zero.
constexpr double kDivisors[] = {1, 2, 3, 7, 64, 1e-3, -1, 1 + 1e-12, 1e300, 0};

TEST_P(Kernels, FinishAsTheDaemonDoes) {
  for (const Dtype dtype : kFloats) {
    for (const double divisor : kDivisors) {
      for (const std::size_t elements : {0u, 1u, 7u, 20'003u}) check_finish(dtype, divisor, elements);
      ASSERT_FALSE(HasFatalFailure());
    }
  }
}

TEST_P(Kernels, RoundOnceAsTheDaemonDoes) {
  for (const Dtype dtype : kFloats) {
    for (const ReduceOp op : kOps) {
      for (const double divisor : kDivisors) {
        for (const std::size_t count : {1u, 2u, 3u, 8u, 16u}) check_average(dtype, op, count, divisor);
        ASSERT_FALSE(HasFatalFailure());
      }
    }
  }
}

// What the numbers to be finished are good for: all these occur among the results.
TEST(NumbersToFinish, BecomeSubnormalOnesTheLargestOnesAndInfinities) {
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBfloat16}) {
    for (const double divisor : {1.0, 3.0, 64.0}) {
      const Format format = format_of(dtype);
      const Sources source = to_finish(dtype, divisor, 20'003);
      Bytes out(source.elements * dtype_size(dtype));
      ASSERT_TRUE(
          finish_on_host(finish_kernel_name(dtype), out.data(), source.memory[0].data(), source.elements, divisor));
      std::size_t zeros = 0, subnormals = 0, largest = 0, infinities = 0, nans = 0;
      for (std::size_t i = 0; i < source.elements; ++i) {
        const std::uint64_t magnitude = bits_at(out, i, 2) & 0x7fff;
        zeros += magnitude == 0;
        subnormals += magnitude != 0 && magnitude < unit(format);
        largest += magnitude == format.infinity - 1;
        infinities += magnitude == format.infinity;
        nans += is_nan(format, magnitude);
      }
      for (const std::size_t found : {zeros, subnormals, infinities, nans}) EXPECT_GT(found, 5u);
      // No float32 is so large that its third is the largest bfloat16.
      const bool reached = dtype == Dtype::kFloat16 || divisor == 1;
      EXPECT_EQ(largest > 5, reached);
    }
  }
}

TEST(KernelNames, AreThoseOfTheOperationAndTheElementType) {
  EXPECT_EQ(kernel_name(ReduceOp::kSum, Dtype::kFloat32), "tl_sum_float32");
  EXPECT_EQ(kernel_name(ReduceOp::kAverage, Dtype::kFloat16), "tl_sum_float16");
  EXPECT_EQ(kernel_name(ReduceOp::kMin, Dtype::kBfloat16), "tl_min_bfloat16");
  EXPECT_EQ(kernel_name(ReduceOp::kProduct, Dtype::kUint8), "tl_product_uint8");
  EXPECT_EQ(finish_kernel_name(Dtype::kBfloat16), "tl_finish_bfloat16");
  EXPECT_FALSE(combine_on_host("tl_sum_float", nullptr, {}, 1, 0));
  EXPECT_FALSE(combine_on_host("tl_finish_float32", nullptr, {}, 1, 0));
  EXPECT_FALSE(combine_on_host("", nullptr, {}, 1, 0));
  EXPECT_FALSE(finish_on_host("tl_sum_float32", nullptr, nullptr, 0, 1));
  EXPECT_FALSE(finish_on_host(finish_kernel_name(Dtype::kInt32), nullptr, nullptr, 0, 1));
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
