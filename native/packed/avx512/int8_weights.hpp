// Weights of values in int16, for dot products in int8.
#pragma once

#include "attend/contract.hpp"
#include "attend/weights.hpp"
#include "packed/avx512/group_scales.hpp"
#include "packed/avx512/int8.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Tokens whose weights share a scale. Sums of their products fit into 32 bits: 128·255·kMostInt16 < 2^31. Those of the
// weights themselves are exact in fp32: 128·kMostInt16 < 2^24.
constexpr int64_t kWeightSpan = 128;
constexpr int kWeightVectors = kWeightSpan / Vec::width;
static_assert(kMaxChunkTokens % kWeightSpan == 0, "weights are zeros up to a whole span");

// Weights of so many queries in int16.
template <int kQueries>
using WeightInt16 = Int16For<kQueries, 2>;

// Sets of the weights of a few queries and a span of tokens each: of several spans, as many as there are lanes for
// their largest, or of a span with the scales of several groups. Weights behind the last token are zero.
template <int kQueries, int kCount = Vec::width / kQueries>
struct Int16Weights {
  static constexpr int kSets = kCount;
  alignas(64) int8_t int16[kSets][kQueries][2 * kWeightSpan];
  alignas(64) float scale[kSets][kQueries];
  alignas(64) int32_t offset[kSets][kQueries];  // for numbers that are larger by some
};

// Neighboring groups are taken two and two.
template <int kQueries>
using GroupWeights = Int16Weights<kQueries, (Vec::width / kQueries < 2 ? 2 : Vec::width / kQueries / 2 * 2)>;

// Weights from `first` on, as many spans as there are sets or up to the last token.
template <int kQueries>
inline void quantize_weights(int offset, Weights<kQueries>& source, int64_t first, int64_t last,
                             Int16Weights<kQueries>& result) {
  constexpr int kRows = Vec::width;
  const int64_t tokens = least(result.kSets * kWeightSpan, last - first);
  const float* weights = source.take_spans(first, tokens, kWeightSpan);
  const auto at = [&](int64_t row, int64_t t) __attribute__((always_inline)) {
    return load(weights + row % kQueries * kLogitStride + row / kQueries * kWeightSpan + t);
  };
  // Spans behind the last token are left as they are.
  const auto is_there = [&](int64_t row) { return row / kQueries * kWeightSpan < tokens; };
  Vec most[kRows];
  unroll<kRows>([&](auto row) {
    most[row] = broadcast(0.0f);
    if (!is_there(row)) return;
    unroll<kWeightVectors>([&](auto i) { most[row] = larger_magnitude(most[row], at(row, i * Vec::width)); });
  });
  const Vec largest = row_maxima(most);
  alignas(64) float factors[kRows];
  store(factors, inverse_int16_scale(largest));
  store(result.scale[0], int16_scale(largest));
  Vec sums[kRows];
  unroll<kRows>([&](auto row) {
    sums[row] = broadcast(0.0f);
    if (!is_there(row)) return;
    const Vec factor = broadcast(factors[row]);
    __m512i sum = _mm512_setzero_si512();
    unroll<kWeightVectors / 2>([&](auto i) {
      const __m512i a = to_int16(at(row, 2 * i * Vec::width), factor);
      const __m512i b = to_int16(at(row, (2 * i + 1) * Vec::width), factor);
      WeightInt16<kQueries>::template store_32<kWeightSpan>(result.int16[row / kQueries][row % kQueries], 32 * i, a, b);
      sum = _mm512_add_epi32(sum, _mm512_add_epi32(a, b));
    });
    sums[row] = {_mm512_cvtepi32_ps(sum)};
  });
  const __m512i offsets = _mm512_mullo_epi32(_mm512_cvtps_epi32(row_sums(sums).v), _mm512_set1_epi32(-offset));
  _mm512_store_si512(result.offset[0], offsets);
}

// The weights of a span times the scales of `count` groups, from `first` on, a set each: numbers are summed up as they
// lie, larger by `offset`. Adds the products with the zeros, the same for all channels of a group, to acc.
template <int kQueries, class T>
inline void fold_weights(const Groups<T>& groups, int offset, int64_t first, int64_t count, const float* weights,
                         int64_t tokens, GroupWeights<kQueries>& result, float* acc, int64_t acc_width) {
  constexpr int kSets = GroupWeights<kQueries>::kSets, kRows = kSets * kQueries;
  alignas(64) float scales[kSets][kWeightSpan], zeros[kSets][kWeightSpan], folded[kRows][kWeightSpan];
  constexpr int64_t kPaddedRows = round_up(kRows, Vec::width);
  alignas(64) float most[kPaddedRows], factors[kPaddedRows];
  const int64_t padded = round_up(tokens, 2 * Vec::width);
  static_assert(kWeightTokens % (2 * Vec::width) == 0, "weights are zeros so far");
  const auto spread = [&](const T* from, float* to) {
    spread_groups(from, groups.count, first, count, tokens, to, kWeightSpan);
    if (round_up(tokens, Vec::width) == padded) return;
    for (int64_t set = 0; set < count; ++set) store(to + set * kWeightSpan + padded - Vec::width, broadcast(0.0f));
  };
  spread(groups.scales, scales[0]);
  if (groups.zeros) spread(groups.zeros, zeros[0]);
  for (int64_t set = 0; set < count; ++set) {
    Vec largest[kQueries], sums[kQueries];
    unroll<kQueries>([&](auto q) { largest[q] = sums[q] = broadcast(0.0f); });
    for (int64_t t = 0; t < padded; t += Vec::width) {
      const Vec scale = load(scales[set] + t), zero = groups.zeros ? load(zeros[set] + t) : broadcast(0.0f);
      unroll<kQueries>([&](auto q) {
        const Vec weight = load(weights + q * kLogitStride + t);
        const Vec product = weight * scale;
        store(folded[set * kQueries + q] + t, product);
        largest[q] = larger_magnitude(largest[q], product);
        sums[q] = fma(weight, zero, sums[q]);
      });
    }
    unroll<kQueries>([&](auto q) { most[set * kQueries + q] = lane_max(largest[q]); });
    if (!groups.zeros) continue;
    unroll<kQueries>([&](auto q) {
      const Vec sum = broadcast(lane_sum(sums[q]));
      float* at = acc + q * acc_width + (first + set) * groups.size;
      for (int64_t d = 0; d < groups.size; d += Vec::width) store(at + d, load(at + d) + sum);
    });
  }
  for (int64_t row = 0; row < count * kQueries; row += Vec::width) {
    const Vec largest = load_up_to(most + row, count * kQueries - row);
    store(factors + row, inverse_int16_scale(largest));
    store(result.scale[0] + row, int16_scale(largest));
  }
  for (int64_t row = 0; row < count * kQueries; ++row) {
    const Vec factor = broadcast(factors[row]);
    __m512i sum = _mm512_setzero_si512();
    int8_t* int16 = result.int16[row / kQueries][row % kQueries];
    for (int64_t t = 0; t < padded; t += 2 * Vec::width) {
      const __m512i a = to_int16(load(folded[row] + t), factor);
      const __m512i b = to_int16(load(folded[row] + t + Vec::width), factor);
      WeightInt16<kQueries>::template store_32<kWeightSpan>(int16, t, a, b);
      sum = _mm512_add_epi32(sum, _mm512_add_epi32(a, b));
    }
    result.offset[row / kQueries][row % kQueries] = -offset * _mm512_reduce_add_epi32(sum);
  }
}

}  // namespace
}  // namespace winnow
