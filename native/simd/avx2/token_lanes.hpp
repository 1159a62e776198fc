// Eight rows whose lanes are tokens: rows change places with channels while they are read, so that nothing is summed over
// lanes.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "simd/element.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Lane t of lanes[i]: bytes 4·i .. 4·i + 3 of row t, of 16 bytes of eight rows `stride` bytes apart.
__attribute__((always_inline)) inline void turn_eight(const char* rows, int64_t stride, __m256i (&lanes)[4]) {
  __m256i halves[4];  // of the rows i and i + 4
  unroll<4>([&](auto i) __attribute__((always_inline)) {
    const char* at = rows + i * stride;
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 4 * stride));
    halves[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
  });
  const __m256i a = _mm256_unpacklo_epi32(halves[0], halves[1]), b = _mm256_unpacklo_epi32(halves[2], halves[3]);
  const __m256i c = _mm256_unpackhi_epi32(halves[0], halves[1]), d = _mm256_unpackhi_epi32(halves[2], halves[3]);
  lanes[0] = _mm256_unpacklo_epi64(a, b);
  lanes[1] = _mm256_unpackhi_epi64(a, b);
  lanes[2] = _mm256_unpacklo_epi64(c, d);
  lanes[3] = _mm256_unpackhi_epi64(c, d);
}

// Channel kPart of the elements in 4 bytes of every lane.
template <int kPart>
inline Vec channel_of(Bf16, __m256i lanes) {
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {_mm256_castsi256_ps(kPart == 0 ? _mm256_slli_epi32(lanes, 16) : _mm256_and_si256(lanes, upper))};
}
template <int kPart>
inline Vec channel_of(Int8, __m256i lanes) {
  return {_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(lanes, 24 - 8 * kPart), 24))};
}

}  // namespace
}  // namespace winnow
