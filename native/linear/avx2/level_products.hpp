// Products of levels of 4 bits and inputs as whole numbers, for AVX2.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "linear/avx2/level_inputs.hpp"
#include "linear/avx2/nibbles.hpp"
#include "simd/vec.hpp"
#include "winnow_native.h"

namespace winnow {
namespace {

constexpr int64_t kInputNibbles = kNibbleOutputs / 2;  // bytes

// The levels of an input for 32 outputs, a byte each: the lower halves of bytes, and then the upper ones.
inline __m256i spread_nibbles(const uint8_t* from) {
  const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  const __m256i shifts = _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4);
  return _mm256_and_si256(_mm256_srlv_epi32(both, shifts), _mm256_set1_epi8(15));
}

constexpr int32_t kMostLevel = 15;
static_assert(WINNOW_SCALE_GROUP / 2 * kMostLevel * InputLevels<int8_t>::kMost <= INT16_MAX, "sums of pairs may overflow");

// Numbers of a row in every lane, as many as it has.
template <class N>
inline __m256i broadcast_lane(const N* p) {
  int32_t lane;
  std::memcpy(&lane, p, sizeof lane);
  return _mm256_set1_epi32(lane);
}

// Products of levels and inputs, two of them added up; and their sums. In one piece: a compiler would begin all products before
// it adds the first, and spill.
inline __m256i products(__m256i levels, __m256i inputs, int8_t) { return _mm256_maddubs_epi16(levels, inputs); }
inline __m256i products(__m256i levels, __m256i inputs, int16_t) { return _mm256_madd_epi16(levels, inputs); }
inline void add_products(__m256i levels, __m256i inputs, __m256i& sums, int8_t) {
  __m256i found;
  asm("vpmaddubsw %[inputs], %[levels], %[found]\n\tvpaddw %[found], %[sums], %[sums]"
      : [sums] "+x"(sums), [found] "=&x"(found)
      : [inputs] "x"(inputs), [levels] "x"(levels));
}
inline void add_products(__m256i levels, __m256i inputs, __m256i& sums, int16_t) {
  __m256i found;
  asm("vpmaddwd %[inputs], %[levels], %[found]\n\tvpaddd %[found], %[sums], %[sums]"
      : [sums] "+x"(sums), [found] "=&x"(found)
      : [inputs] "x"(inputs), [levels] "x"(levels));
}

// Such sums -> of all inputs of each output, in fp32.
inline Vec to_outputs(__m256i sums, int8_t) {
  return {_mm256_cvtepi32_ps(_mm256_madd_epi16(sums, _mm256_set1_epi16(1)))};
}
inline Vec to_outputs(__m256i sums, int16_t) { return {_mm256_cvtepi32_ps(sums)}; }

// What a row counts in the inputs that share a scale of a weight: its scale, and the sum of these inputs.
struct RowCounts {
  Vec scale, sum;

  template <class N>
  RowCounts(const InputLevels<N>& block, int64_t group)
      : scale(broadcast(block.scale)), sum(broadcast(block.sums[group])) {}

  // A total with their sum of products, times the weight's scale, and what level zero stands for.
  Vec added(Vec total, Vec products, Vec of_weight, Vec least) const {
    return fma(sum, least, fma(products * scale, of_weight, total));
  }
};

// What level zero stands for, of a scale and the middle of the levels.
inline Vec least_of(Vec scale, Vec middle) { return fma(broadcast(-8.0f), scale, middle); }

}  // namespace
}  // namespace winnow
