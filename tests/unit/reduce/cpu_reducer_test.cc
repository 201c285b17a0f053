#include "daemon/reduce/cpu_reducer.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tensorlane::reduce {
namespace {

using Bytes = std::vector<std::byte>;

// ---- the reference: one element at a time, conversions by value and not by bits ----

// The value of a float16 or bfloat16, from its definition. Exact in double.
double decode16(std::uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
  const int exponent = (bits >> mantissa_bits) & top, mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == top)
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

// Nearest even, from its definition: std::nearbyint rounds the number of units in the last place.
std::uint16_t encode16(double value, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | (top << mantissa_bits) | (1 << (mantissa_bits - 1)));
  value = std::fabs(value);
  const int smallest = 1 - bias;
  const int exponent = value == 0 ? smallest : std::max(std::ilogb(value), smallest);
  if (exponent > bias)
    return static_cast<std::uint16_t>(sign | (top << mantissa_bits));  // infinity, and what is far too large
  const double units = std::nearbyint(std::ldexp(value, mantissa_bits - exponent));
  const double rounded = std::ldexp(units, exponent - mantissa_bits);
  if (rounded == 0) return sign;
  const int e = std::max(std::ilogb(rounded), smallest);
  if (e > bias) return static_cast<std::uint16_t>(sign | (top << mantissa_bits));
  const auto m = static_cast<int>(std::ldexp(rounded, mantissa_bits - e));
  const int hidden = 1 << mantissa_bits;
  return static_cast<std::uint16_t>(sign | (m >= hidden ? ((e + bias) << mantissa_bits) | (m - hidden) : m));
}

template <typename T>
T read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

double element(const std::byte* data, Dtype dtype, std::size_t i) {
  switch (dtype) {
    case Dtype::kFloat32:
      return read<float>(data + 4 * i);
    case Dtype::kFloat64:
      return read<double>(data + 8 * i);
    case Dtype::kFloat16:
      return decode16(read<std::uint16_t>(data + 2 * i), 5);
    case Dtype::kBfloat16:
      return decode16(read<std::uint16_t>(data + 2 * i), 8);
    default:
      return NAN;
  }
}

void put(std::byte* data, Dtype dtype, std::size_t i, double value) {
  const auto f = static_cast<float>(value);
  const std::uint16_t h =
      encode16(dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16 ? f : 0, dtype == Dtype::kFloat16 ? 5 : 8);
  switch (dtype) {
    case Dtype::kFloat32:
      std::memcpy(data + 4 * i, &f, 4);
      break;
    case Dtype::kFloat64:
      std::memcpy(data + 8 * i, &value, 8);
      break;
    case Dtype::kFloat16:
    case Dtype::kBfloat16:
      std::memcpy(data + 2 * i, &h, 2);
      break;
    default:
      FAIL() << "integers have a test of their own";
  }
}

// Two numbers under a reduction. A NaN wins; of equal numbers the first stays.
template <typename T>
T combine(T a, T b, ReduceOp op) {
  if (op == ReduceOp::kSum) return a + b;
  if (op == ReduceOp::kProduct) return a * b;
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? a : b;
  return (op == ReduceOp::kMin ? b < a : b > a) ? b : a;
}

Bytes reference(Dtype out_dtype, const std::vector<ports::ReduceSource>& sources, std::size_t elements, ReduceOp op,
                double divisor) {
  Bytes out(elements * dtype_size(out_dtype));
  bool wide = out_dtype == Dtype::kFloat64;
  for (const auto& s : sources) wide = wide || s.dtype == Dtype::kFloat64;
  for (std::size_t i = 0; i < elements; ++i) {
    double d = element(sources[0].data, sources[0].dtype, i);
    auto f = static_cast<float>(d);
    for (std::size_t k = 1; k < sources.size(); ++k) {
      d = combine(d, element(sources[k].data, sources[k].dtype, i), op);
      f = combine(f, static_cast<float>(element(sources[k].data, sources[k].dtype, i)), op);
    }
    if (divisor != 1) {
      d /= divisor;
      f /= static_cast<float>(divisor);
    }
    put(out.data(), out_dtype, i, wide ? d : f);
  }
  return out;
}

// Bitwise, except that any NaN equals any NaN: which payload survives an addition is the processor's choice.
void expect_equal(const std::byte* got, const Bytes& want, Dtype dtype, const std::string& what) {
  const std::size_t size = dtype_size(dtype);
  for (std::size_t i = 0; i < want.size() / size; ++i) {
    if (std::memcmp(got + i * size, want.data() + i * size, size) == 0) continue;
    if (std::isnan(element(got, dtype, i)) && std::isnan(element(want.data(), dtype, i))) continue;
    FAIL() << what << ": element " << i << " is " << element(got, dtype, i) << ", expected "
           << element(want.data(), dtype, i);
  }
}

Bytes random_elements(Dtype dtype, std::size_t elements, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> value(-4, 4);
  const double special[] = {0.0,   -0.0,  INFINITY, -INFINITY, NAN,  6e-8,      65504,
                            65520, 1e-40, 3.4e38,   1,         2049, 1.00390625};
  Bytes bytes(elements * dtype_size(dtype));
  for (std::size_t i = 0; i < elements; ++i)
    put(bytes.data(), dtype, i, random() % 16 ? value(random) : special[random() % std::size(special)]);
  return bytes;
}

class CpuReducer : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<ports::Reducer> reducer = make_cpu_reducer(GetParam());

  // Combines sources at address shift `shift` and compares; then once more in place where the types allow it.
  void check(Dtype out_dtype, const std::vector<Dtype>& types, std::size_t elements, double divisor, std::size_t shift,
             ReduceOp op = ReduceOp::kSum) {
    std::vector<Bytes> memory;
    std::vector<ports::ReduceSource> sources;
    for (std::size_t k = 0; k < types.size(); ++k) {
      Bytes bytes = random_elements(types[k], elements, elements * 100 + k);
      bytes.insert(bytes.begin(), (shift + k) % 64, std::byte{0});
      memory.push_back(std::move(bytes));
      sources.push_back({memory[k].data() + (shift + k) % 64, types[k]});
    }
    const std::string what = GetParam() + ", " + reduce_op_name(op) + " of " + std::to_string(types.size()) + " into " +
                             dtype_name(out_dtype) + ", " + std::to_string(elements) + " elements, shift " +
                             std::to_string(shift);
    const Bytes want = reference(out_dtype, sources, elements, op, divisor);
    Bytes out(want.size() + shift + 16, std::byte{0x5a});
    reducer->reduce(out.data() + shift, out_dtype, sources, elements, op, divisor);
    expect_equal(out.data() + shift, want, out_dtype, what);
    for (std::size_t i = 0; i < 16; ++i)
      ASSERT_EQ(out[shift + want.size() + i], std::byte{0x5a}) << what << ": wrote past the end";
    for (std::size_t i = 0; i < shift; ++i) ASSERT_EQ(out[i], std::byte{0x5a}) << what << ": wrote before the start";
    for (std::size_t k = 0; k < types.size(); ++k) {
      if (dtype_size(types[k]) != dtype_size(out_dtype)) continue;
      const Bytes before = memory[k];
      reducer->reduce(memory[k].data() + (shift + k) % 64, out_dtype, sources, elements, op, divisor);
      expect_equal(memory[k].data() + (shift + k) % 64, want, out_dtype,
                   what + ", in place of source " + std::to_string(k));
      memory[k] = before;
      sources[k].data = memory[k].data() + (shift + k) % 64;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, CpuReducer, ::testing::ValuesIn(available_kernels()),
                         [](const auto& info) { return info.param; });

constexpr Dtype kAll[] = {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBfloat16};

TEST_P(CpuReducer, SumsOneType) {
  for (const Dtype dtype : kAll) {
    for (std::size_t count = 1; count <= 6; ++count) {
      for (std::size_t elements = 0; elements <= 67; ++elements) {
        check(dtype, std::vector<Dtype>(count, dtype), elements, elements % 2 ? 1 : 3, (elements * 7) % 64);
        ASSERT_FALSE(HasFatalFailure());
      }
    }
  }
}

constexpr ReduceOp kComparing[] = {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

TEST_P(CpuReducer, ComparesAndMultipliesEveryMixtureOfTypes) {
  for (const ReduceOp op : kComparing) {
    for (const Dtype out : kAll) {
      for (std::size_t elements = 0; elements <= 67; ++elements) {
        check(out, std::vector<Dtype>(1 + elements % 4, out), elements, 1, (elements * 7) % 64, op);
      }
      for (const Dtype second : kAll) check(out, {out, second, Dtype::kFloat32}, 1025, 1, 3, op);
      ASSERT_FALSE(HasFatalFailure());
    }
  }
}

// A NaN wins wherever it stands; of -0 and 0, which are equal, the first stays.
TEST_P(CpuReducer, MinimumAndMaximumOfNumbersThatAreNone) {
  const float a[] = {NAN, 1, NAN, -0.0F, 0.0F, -INFINITY}, b[] = {1, NAN, NAN, 0.0F, -0.0F, INFINITY};
  const ports::ReduceSource sources[] = {{reinterpret_cast<const std::byte*>(a), Dtype::kFloat32},
                                         {reinterpret_cast<const std::byte*>(b), Dtype::kFloat32}};
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    std::vector<float> out(std::size(a));
    reducer->reduce(reinterpret_cast<std::byte*>(out.data()), Dtype::kFloat32, sources, out.size(), op, 1);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(out[i])) << i;
    EXPECT_TRUE(std::signbit(out[3]));
    EXPECT_FALSE(std::signbit(out[4]));
    EXPECT_EQ(out[5], op == ReduceOp::kMin ? -INFINITY : INFINITY);
  }
}

// Every integer type with every reduction, at its ends, where it wraps around.
template <typename T>
void check_integers(ports::Reducer& reducer, Dtype dtype, std::size_t elements, std::size_t count, std::size_t shift) {
  std::mt19937_64 random(elements * 10 + count);
  const T ends[] = {std::numeric_limits<T>::min(), std::numeric_limits<T>::max(), T{0}, static_cast<T>(-1), T{1}};
  std::vector<Bytes> memory(count, Bytes(elements * sizeof(T) + shift));
  std::vector<ports::ReduceSource> sources;
  for (Bytes& bytes : memory) {
    for (std::size_t i = 0; i < elements; ++i) {
      const T value = random() % 4 == 0 ? ends[random() % std::size(ends)] : static_cast<T>(random());
      std::memcpy(bytes.data() + shift + i * sizeof(T), &value, sizeof(T));
    }
    sources.push_back({bytes.data() + shift, dtype});
  }
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    Bytes out(elements * sizeof(T) + 8, std::byte{0x5a});
    reducer.reduce(out.data(), dtype, sources, elements, op, 1);
    for (std::size_t i = 0; i < elements; ++i) {
      T want = read<T>(sources[0].data + i * sizeof(T));
      for (std::size_t k = 1; k < count; ++k) {
        const T next = read<T>(sources[k].data + i * sizeof(T));
        if (op == ReduceOp::kMin) want = std::min(want, next);
        if (op == ReduceOp::kMax) want = std::max(want, next);
        if (op == ReduceOp::kSum) want = static_cast<T>(std::uint64_t(want) + std::uint64_t(next));
        if (op == ReduceOp::kProduct) want = static_cast<T>(std::uint64_t(want) * std::uint64_t(next));
      }
      ASSERT_EQ(read<T>(out.data() + i * sizeof(T)), want)
          << reduce_op_name(op) << " of " << count << " " << dtype_name(dtype) << ", element " << i << " of "
          << elements;
    }
    for (std::size_t i = 0; i < 8; ++i) ASSERT_EQ(out[elements * sizeof(T) + i], std::byte{0x5a}) << "past the end";
  }
}

TEST_P(CpuReducer, IntegersWrapAround) {
  for (std::size_t elements = 0; elements <= 200; elements += 1 + elements / 9) {
    for (const std::size_t count : {1u, 2u, 3u, 5u}) {
      check_integers<std::int8_t>(*reducer, Dtype::kInt8, elements, count, elements % 7);
      check_integers<std::uint8_t>(*reducer, Dtype::kUint8, elements, count, elements % 7);
      check_integers<std::int32_t>(*reducer, Dtype::kInt32, elements, count, elements % 7);
      check_integers<std::int64_t>(*reducer, Dtype::kInt64, elements, count, elements % 7);
      ASSERT_FALSE(HasFatalFailure());
    }
  }
}

TEST_P(CpuReducer, SumsEveryMixtureOfTypes) {
  for (const Dtype out : kAll) {
    for (const Dtype first : kAll) {
      for (const Dtype second : kAll) {
        for (const std::size_t elements : {1u, 5u, 67u, 511u, 512u, 513u, 1500u}) {
          check(out, {first, second, first}, elements, elements % 2 ? 7 : 1, 3);
          ASSERT_FALSE(HasFatalFailure());
        }
      }
    }
  }
}

TEST_P(CpuReducer, ConvertsOneSource) {
  for (const Dtype out : kAll) {
    for (const Dtype in : kAll) {
      check(out, {in}, 1000, 1, 1);
      ASSERT_FALSE(HasFatalFailure());
    }
  }
}

TEST_P(CpuReducer, SumsLargeTensorsOfManySources) {
  for (const Dtype dtype : kAll) {
    check(dtype, std::vector<Dtype>(8, dtype), 100003, 8, 5);
    check(dtype, std::vector<Dtype>(ports::kMaxReduceSources, dtype), 1000, 64, 0);
    ASSERT_FALSE(HasFatalFailure());
  }
}

TEST_P(CpuReducer, WorksAtEveryAlignment) {
  for (std::size_t shift = 0; shift < 64; ++shift) {
    for (const Dtype dtype : kAll) check(dtype, {dtype, dtype}, 131, 1, shift);
    ASSERT_FALSE(HasFatalFailure());
  }
}

// All 65536 numbers of each 16-bit type, both ways.
TEST_P(CpuReducer, ConvertsEvery16BitNumber) {
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBfloat16}) {
    Bytes all(65536 * 2), wide(65536 * 4), back(65536 * 2);
    for (std::size_t i = 0; i < 65536; ++i) {
      const auto bits = static_cast<std::uint16_t>(i);
      std::memcpy(all.data() + 2 * i, &bits, 2);
    }
    const ports::ReduceSource narrow{all.data(), dtype}, widened{wide.data(), Dtype::kFloat32};
    reducer->reduce(wide.data(), Dtype::kFloat32, {&narrow, 1}, 65536, ReduceOp::kSum, 1);
    reducer->reduce(back.data(), dtype, {&widened, 1}, 65536, ReduceOp::kSum, 1);
    for (std::size_t i = 0; i < 65536; ++i) {
      const double value = decode16(static_cast<std::uint16_t>(i), dtype == Dtype::kFloat16 ? 5 : 8);
      const auto f = read<float>(wide.data() + 4 * i);
      if (std::isnan(value)) {
        ASSERT_TRUE(std::isnan(f)) << i;
        ASSERT_TRUE(std::isnan(element(back.data(), dtype, i))) << i;
        continue;
      }
      ASSERT_EQ(f, value) << i;
      ASSERT_EQ(std::signbit(f), std::signbit(value)) << i;
      ASSERT_EQ(read<std::uint16_t>(back.data() + 2 * i), i);
    }
  }
}

// Context every boundary between two neighbouring 16-bit numbers: the middle goes to the even one, one bit beside it to
// the nearer one.
TEST_P(CpuReducer, RoundsToNearestEven) {
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBfloat16}) {
    const int exponent_bits = dtype == Dtype::kFloat16 ? 5 : 8;
    const std::uint16_t infinity = dtype == Dtype::kFloat16 ? 0x7c00 : 0x7f80;
    std::vector<float> values;
    for (std::uint16_t bits = 0; bits < infinity; ++bits) {
      const double low = decode16(bits, exponent_bits);
      const double high = bits + 1 == infinity
                              ? low + (low - decode16(static_cast<std::uint16_t>(bits - 1), exponent_bits))
                              : decode16(static_cast<std::uint16_t>(bits + 1), exponent_bits);
      const auto middle = static_cast<float>((low + high) / 2);
      for (const float v : {std::nextafterf(middle, 0), middle, std::nextafterf(middle, INFINITY)}) {
        values.push_back(v);
        values.push_back(-v);
      }
    }
    Bytes out(values.size() * 2);
    const ports::ReduceSource source{reinterpret_cast<const std::byte*>(values.data()), Dtype::kFloat32};
    reducer->reduce(out.data(), dtype, {&source, 1}, values.size(), ReduceOp::kSum, 1);
    for (std::size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(read<std::uint16_t>(out.data() + 2 * i), encode16(values[i], exponent_bits))
          << dtype_name(dtype) << " of " << values[i];
    }
  }
}

// The sum is rounded once, not after every source.
TEST_P(CpuReducer, AccumulatesSixteenBitSumsInFloat32) {
  for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBfloat16}) {
    Bytes one(2), tiny(2), out(2);
    put(one.data(), dtype, 0, 1);
    const double step =
        dtype == Dtype::kFloat16 ? std::ldexp(1, -12) : std::ldexp(1, -9);  // a quarter of the last place of 1
    put(tiny.data(), dtype, 0, step);
    std::vector<ports::ReduceSource> sources(5, {tiny.data(), dtype});
    sources[0] = {one.data(), dtype};
    reducer->reduce(out.data(), dtype, sources, 1, ReduceOp::kSum, 1);
    EXPECT_EQ(element(out.data(), dtype, 0), 1 + 4 * step);
  }
}

// (a + b) + c, never a + (b + c).
TEST_P(CpuReducer, KeepsTheOrderOfSources) {
  const float a = 1e8f, b = -1e8f, c = 1;
  float out = 0;
  const auto source = [](const float& f) {
    return ports::ReduceSource{reinterpret_cast<const std::byte*>(&f), Dtype::kFloat32};
  };
  const std::vector<ports::ReduceSource> forth = {source(a), source(b), source(c)},
                                         back = {source(c), source(a), source(b)};
  reducer->reduce(reinterpret_cast<std::byte*>(&out), Dtype::kFloat32, forth, 1, ReduceOp::kSum, 1);
  EXPECT_EQ(out, 1);
  reducer->reduce(reinterpret_cast<std::byte*>(&out), Dtype::kFloat32, back, 1, ReduceOp::kSum, 1);
  EXPECT_EQ(out, 0);
}

// What every kernel makes of the same sources, compared by `equal` with what the first one makes of them.
template <typename Equal>
void compare_kernels(Dtype out_dtype, const std::vector<ports::ReduceSource>& sources, std::size_t elements,
                     ReduceOp op, double divisor, Equal&& equal) {
  Bytes first;
  for (const std::string& name : available_kernels()) {
    Bytes out(elements * dtype_size(out_dtype));
    make_cpu_reducer(name)->reduce(out.data(), out_dtype, sources, elements, op, divisor);
    if (first.empty()) first = out;
    equal(out, first, name + ", " + reduce_op_name(op) + " into " + dtype_name(out_dtype));
  }
}

TEST(CpuReducers, AllGiveTheSameBits) {
  const Bytes a = random_elements(Dtype::kFloat32, 5000, 1), b = random_elements(Dtype::kFloat16, 5000, 2);
  const std::vector<ports::ReduceSource> sources = {{a.data(), Dtype::kFloat32}, {b.data(), Dtype::kFloat16}};
  for (const Dtype dtype : kAll) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct}) {
      compare_kernels(dtype, sources, 5000, op, op == ReduceOp::kSum ? 3 : 1,
                      [dtype](const Bytes& out, const Bytes& first, const std::string& what) {
                        expect_equal(out.data(), first, dtype, what);
                      });
    }
  }
}

// A minimum is one of its sources, so that the bits of a NaN are no processor's choice. Any bits are numbers here.
TEST(CpuReducers, ChooseTheSameNaN) {
  constexpr std::size_t kElements = 1003;
  std::mt19937_64 random(5);
  for (std::uint8_t d = 0; d < kDtypeCount; ++d) {
    const auto dtype = static_cast<Dtype>(d);
    std::vector<Bytes> memory(3, Bytes(kElements * dtype_size(dtype)));
    std::vector<ports::ReduceSource> sources;
    for (Bytes& bytes : memory) {
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 3 == 0 ? 0xff : random());
      sources.push_back({bytes.data(), dtype});
    }
    for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
      compare_kernels(
          dtype, sources, kElements, op, 1,
          [](const Bytes& out, const Bytes& first, const std::string& what) { EXPECT_EQ(out, first) << what; });
    }
  }
}

}  // namespace
}  // namespace tensorlane::reduce
