// Products of pairs of 16-bit numbers, 32 numbers to an instruction. Inline assembly: the intrinsics make GCC copy
// accumulators.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "simd/avx512/halves.hpp"
#include "simd/element.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// sum[i] + a[2·i]·b[2·i] + a[2·i + 1]·b[2·i + 1], of bf16; needs AVX-512 BF16.
struct Bf16Pairs {
  using Sum = __m512;

  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum add(Sum sum, __m512i a, __m512i b) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
  }
};

// The lanes of a and then b, rounded to bf16.
inline __m512i round_lanes(Vec a, Vec b) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b.v, a.v)); }

// The lanes of a beside those of b, rounded to bf16.
inline Vec pair_lanes(Vec a, Vec b) { return {_mm512_castsi512_ps(pair_halves(round_lanes(a, b)))}; }

// Numbers of a row beside those of another, or of zeros; writes whole vectors of 32 pairs.
inline void pair_rows(const Bf16* a, const Bf16* b, int64_t dim, float* pairs) {
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5,
                                       36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  for (int64_t d = 0; d < dim; d += 32) {
    const auto mask = static_cast<__mmask32>((uint64_t{1} << (dim - d < 32 ? dim - d : 32)) - 1);
    const __m512i first = _mm512_maskz_loadu_epi16(mask, a + d);
    const __m512i second = b ? _mm512_maskz_loadu_epi16(mask, b + d) : _mm512_setzero_si512();
    _mm512_storeu_si512(pairs + d, _mm512_permutex2var_epi16(first, low, second));
    _mm512_storeu_si512(pairs + d + Vec::width, _mm512_permutex2var_epi16(first, high, second));
  }
}

// The same of int16; needs AVX-512 VNNI.
struct Int16Pairs {
  using Sum = __m512i;

  static Sum zero() { return _mm512_setzero_si512(); }
  static Sum add(Sum sum, __m512i a, __m512i b) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
  }
};

}  // namespace
}  // namespace winnow
