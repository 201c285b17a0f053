// float16 with the F16C instructions; for files that are compiled with -mf16c.
#pragma once

#include <immintrin.h>

#include "daemon/reduce/kernels_inline.h"

namespace tensorlane::reduce {
namespace {

struct F16c {
  static void widen(const Half* in, float* out, std::size_t n) {
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8)
      _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
    for (; i < n; ++i) out[i] = half_to_float(in[i]);
  }
  static void narrow(const float* in, Half* out, std::size_t n) {
    std::size_t i = 0;
    for (; i + 8 <= n; i += 8) {
      const __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), halves);
    }
    for (; i < n; ++i) out[i] = float_to_half(in[i]);
  }
};

}  // namespace
}  // namespace tensorlane::reduce
