// fp32 numbers as the sum of two bf16, and pairs of them in one word.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "simd/vec.hpp"

namespace winnow {
namespace {

// What bf16 holds of each lane, cut off, and the rest, rounded: both in the upper half of their words, whose lower halves
// nobody reads. Numbers that come from bf16 or are integers of 8 bits have no rest.
struct Split {
  __m512i first, rest;
};

inline Split split(Vec a) {
  const __m512i first = _mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
  const __m512i rest = _mm512_castps_si512(_mm512_sub_ps(a.v, _mm512_castsi512_ps(first)));
  return {first, _mm512_add_epi32(rest, _mm512_set1_epi32(0x8000))};
}

// Words of a's bf16 and, in the upper half, b's.
inline __m512i pair(__m512i a, __m512i b) {
  return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(a, 16), b);
}

}  // namespace
}  // namespace winnow
