// Powers of two in bf16, for AVX-512.
#pragma once

#include <immintrin.h>

#include "simd/avx512.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

constexpr float kOneUnits = 8388608.0f;  // 2^23, the bits of a mantissa
constexpr int kAndOr = 0xea;             // (a & b) | c

// 2^(x + 1) as a float whose upper half is it in bf16, rounded, of x in units of 2^-23 (no less than 2^-126), to 2^-9.
//
// The bits of a float, as an integer, count evenly between powers of two: those of 2^x are x, but for what its mantissa
// 1 + f is off 2^f. The polynomial 2^f - f + 1 has the bits of that, and one half of bf16's last bit beside.
inline __m512i bf16_power(Vec x) {
  const __m512i bits = _mm512_cvtps_epi32(max(x, broadcast(-127.0f * kOneUnits)).v);
  const Vec mantissa = {_mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(bits, _mm512_set1_epi32(0x7fffff), _mm512_set1_epi32(0x3f800000), kAndOr))};
  Vec p = broadcast(7.80245235e-2f);
  p = fma(p, mantissa, broadcast(-8.00640988e-3f));
  p = fma(p, mantissa, broadcast(-5.22227216e-1f));
  p = fma(p, mantissa, broadcast(2.45213432f + 0x1p-8f));
  return _mm512_add_epi32(_mm512_castps_si512(p.v), bits);
}

// Powers a beside powers b, which is the upper half of a pair.
inline __m512i pair_powers(__m512i a, __m512i b) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  return _mm512_ternarylogic_epi32(b, upper, _mm512_srli_epi32(a, 16), kAndOr);
}

}  // namespace
}  // namespace winnow
