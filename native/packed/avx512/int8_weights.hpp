// Weights of values in int16, for dot products in int8.
#pragma once

#include "attend/contract.hpp"
#include "packed/avx512/int8.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Tokens whose weights share a scale. Sums of their products fit into 32 bits: 128·255·kMostInt16 < 2^31. Those of the
// weights themselves are exact in fp32: 128·kMostInt16 < 2^24.
constexpr int64_t kWeightSpan = 128;
constexpr int kWeightVectors = kWeightSpan / Vec::width;

// Weights of a few spans of tokens, as many as there are lanes for their largest. Those behind the last token are zero.
template <int kQueries>
struct Int16Weights {
  static constexpr int kSpans = Vec::width / kQueries;
  alignas(64) int8_t halves[kSpans][kQueries][2][kWeightSpan];  // high and low
  alignas(64) float scale[kSpans][kQueries];
  alignas(64) int32_t offset[kSpans][kQueries];  // for numbers that are larger by kOffset
};

// The high halves of a and then b, and `apart` bytes behind them the low ones.
inline void store_halves(int8_t* to, int64_t apart, __m512i a, __m512i b) {
  const __m512i both = _mm512_packs_epi32(a, b);  // four of a, four of b, ...
  const __m512i high = _mm512_srai_epi16(_mm512_add_epi16(both, _mm512_set1_epi16(128)), 8);
  const __m512i low = _mm512_srai_epi16(_mm512_slli_epi16(both, 8), 8);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i halves = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(high, low));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(halves));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + apart), _mm512_extracti64x4_epi64(halves, 1));
}

template <int kOffset, int kQueries>
inline void quantize_weights(const float* weights, int64_t tokens, Int16Weights<kQueries>& result) {
  constexpr int kRows = Vec::width;
  const auto at = [&](int64_t row, int64_t t) __attribute__((always_inline)) {
    t += row / kQueries * kWeightSpan;
    return load_up_to(weights + row % kQueries * kLogitStride + t, tokens < t ? 0 : tokens - t);
  };
  Vec most[kRows];
  unroll<kRows>([&](auto row) {
    most[row] = broadcast(0.0f);
    unroll<kWeightVectors>([&](auto i) { most[row] = larger_magnitude(most[row], at(row, i * Vec::width)); });
  });
  const Vec largest = row_maxima(most);
  alignas(64) float factors[kRows];
  store(factors, inverse_int16_scale(largest));
  store(result.scale[0], int16_scale(largest));
  Vec sums[kRows];
  unroll<kRows>([&](auto row) {
    const Vec factor = broadcast(factors[row]);
    __m512i sum = _mm512_setzero_si512();
    unroll<kWeightVectors / 2>([&](auto i) {
      const __m512i a = to_int16(at(row, 2 * i * Vec::width), factor);
      const __m512i b = to_int16(at(row, (2 * i + 1) * Vec::width), factor);
      store_halves(result.halves[row / kQueries][row % kQueries][0] + i * 32, kWeightSpan, a, b);
      sum = _mm512_add_epi32(sum, _mm512_add_epi32(a, b));
    });
    sums[row] = {_mm512_cvtepi32_ps(sum)};
  });
  const __m512i offsets = _mm512_mullo_epi32(_mm512_cvtps_epi32(row_sums(sums).v), _mm512_set1_epi32(-kOffset));
  _mm512_store_si512(result.offset[0], offsets);
}

}  // namespace
}  // namespace winnow
