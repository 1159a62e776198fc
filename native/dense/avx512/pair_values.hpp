// Weighted sums of dense values in bf16 as products of pairs, for AVX-512 BF16: a lane of a product is a channel of two
// tokens. Weights are rounded to bf16 as well, which halves the products, and summed up as they were rounded, so that they
// add up to one.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <type_traits>

#include "attend/contract.hpp"
#include "attend/weights.hpp"
#include "dense/weighted_sum.hpp"
#include "simd/avx512/pairs.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Channels of a strip: a vector of a row, and two of sums.
constexpr int64_t kPairStrip = 2 * Vec::width;

// True where values are whole strips.
inline bool values_are_pairs(int64_t dim) { return dim % kPairStrip == 0; }

// Weights in bf16, those of a block in the place of the logits of its first half.
struct InBf16 {
  static_assert(kWeightTokens == 2 * Vec::width, "a block is a vector");

  static Vec keep(float* at, Vec a, Vec b, Vec sum) {
    const __m512i weights = round_lanes(a, b);
    _mm512_storeu_si512(at, weights);
    return {Bf16Pairs::add(sum.v, weights, _mm512_set1_epi16(kOneInBf16))};
  }
  static const float* from(const float* block, int64_t token) { return block + token / 2; }
  static void hide(float* at, int64_t seen) {
    const auto mask = static_cast<__mmask32>((uint64_t{1} << seen) - 1);
    _mm512_storeu_si512(at, _mm512_maskz_loadu_epi16(mask, at));
  }
};

// Strips that a pass sums up for so many queries: a power of two, as many as registers hold.
constexpr int pair_strips(int queries) { return queries > 6 ? 1 : queries > 3 ? 2 : queries > 1 ? 4 : 8; }

// acc[q][..] += sum over t of weights[q][t]·values[t][..] for kQueries queries and kStrips strips, whose lanes are in the
// order of unpacking, after `asked` bytes.
template <int kQueries, int kStrips, class Ahead>
inline void weigh_pair_strips(const float* weights, const Bf16* values, int64_t dim, int64_t tokens, float* acc,
                              int64_t acc_width, const Ahead& ahead, int64_t asked) {
  constexpr int64_t kBytes = kStrips * kPairStrip * static_cast<int64_t>(sizeof(Bf16));
  constexpr int kVectors = 2 * kStrips, kSums = kQueries * kVectors;
  const int64_t row_bytes = dim * static_cast<int64_t>(sizeof(Bf16));
  const auto place = [&](auto i) { return acc + i / kVectors * acc_width + i % kVectors * Vec::width; };
  __m512 sums[kSums];
  unroll<kSums>([&](auto i) { sums[i] = load(place(i)).v; });
  const auto meet = [&](int64_t t, const auto& load_second) __attribute__((always_inline)) {
    const Bf16* row = values + t * dim;
    __m512i pairs[kVectors];
    unroll<kStrips>([&](auto s) {
      const __m512i a = _mm512_loadu_si512(row + s * kPairStrip), b = load_second(row + dim + s * kPairStrip);
      pairs[2 * s] = _mm512_unpacklo_epi16(a, b);
      pairs[2 * s + 1] = _mm512_unpackhi_epi16(a, b);
    });
    unroll<kQueries>([&](auto q) {
      const __m512i two = broadcast_four(reinterpret_cast<const Bf16*>(weights + q * kLogitStride) + t);
      unroll<kVectors>([&](auto v) {
        constexpr int i = q * kVectors + v;
        sums[i] = Bf16Pairs::add(sums[i], pairs[v], two);
      });
    });
  };
  int64_t t = 0;
  for (; t + 2 <= tokens; t += 2) {
    ahead.template ask<2 * kBytes>(reinterpret_cast<const char*>(values + t * dim), 2 * row_bytes, asked + t * kBytes);
    meet(t, [](const Bf16* p) { return _mm512_loadu_si512(p); });
  }
  if (t < tokens) meet(t, [](const Bf16*) { return _mm512_setzero_si512(); });
  unroll<kSums>([&](auto i) { store(place(i), Vec{sums[i]}); });
}

// The same as a call, so that no constants of the caller's take the registers of what it sums up: measured with seven and
// eight queries, and not worth a call with fewer.
template <int kQueries, int kStrips, class Ahead>
__attribute__((noinline)) void weigh_pair_strips_apart(const float* weights, const Bf16* values, int64_t dim, int64_t tokens,
                                                       float* acc, int64_t acc_width, const Ahead& ahead, int64_t asked) {
  weigh_pair_strips<kQueries, kStrips>(weights, values, dim, tokens, acc, acc_width, ahead, asked);
}

// The same for all channels.
template <int kQueries, class Ahead>
inline void weigh_pair_block(const Shape& shape, const float* weights, const Bf16* values, int64_t tokens,
                             const Ahead& ahead, float* acc) {
  constexpr int kStrips = pair_strips(kQueries);
  const int64_t dim = shape.value_dim;
  int64_t d = 0;
  const auto run = [&](auto strips) {
    constexpr int kSome = decltype(strips)::value;
    const int64_t asked = d * tokens * static_cast<int64_t>(sizeof(Bf16));
    if constexpr (kQueries >= 7) {
      weigh_pair_strips_apart<kQueries, kSome>(weights, values + d, dim, tokens, acc + d, shape.value_width, ahead, asked);
    } else {
      weigh_pair_strips<kQueries, kSome>(weights, values + d, dim, tokens, acc + d, shape.value_width, ahead, asked);
    }
    d += kSome * kPairStrip;
  };
  while (d + kStrips * kPairStrip <= dim) run(Count<kStrips>{});
  if constexpr (kStrips > 4) {
    while (d + 4 * kPairStrip <= dim) run(Count<4>{});
  }
  if constexpr (kStrips > 2) {
    while (d + 2 * kPairStrip <= dim) run(Count<2>{});
  }
  if constexpr (kStrips > 1) {
    if (d < dim) run(Count<1>{});
  }
}

// A row of sums in the order of unpacking -> in that of load_pair.
inline void order_unpacked(int64_t dim, float* acc) {
  const __m512i even = _mm512_setr_epi32(0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30);
  for (int64_t d = 0; d < dim; d += kPairStrip, acc += kPairStrip) {
    Vec a = load(acc), b = load(acc + Vec::width);
    deal_lanes(a, b, even);
    store(acc, a);
    store(acc + Vec::width, b);
  }
}

// acc[q] = sum over tokens of weights[q]·values, in the order of load_pair; acc is zero before.
template <int kQueries>
inline void weigh_pairs(const Shape& shape, Weights<kQueries, InBf16>& weights, const Bf16* values, int64_t tokens,
                        float* acc) {
  const int64_t row_bytes = shape.value_dim * static_cast<int64_t>(sizeof(Bf16));
  for_value_blocks(weights, values, shape.value_dim, tokens,
                   [&](const float* taken, const Bf16* block, int64_t count, const LinesAhead& ahead) {
                     with_requests<kQueries>(row_bytes, ahead, [&](const auto& lines) {
                       weigh_pair_block<kQueries>(shape, taken, block, count, lines, acc);
                     });
                   });
  for (int q = 0; q < kQueries; ++q) order_unpacked(shape.value_dim, acc + q * shape.value_width);
}

// The values of a chunk under the weights of the queries [first, first + kQueries) where they are bf16 and whole strips;
// false elsewhere.
template <int kQueries, class T>
inline bool weigh_numbers(const Shape& shape, const Chunk& chunk, const T* values, int64_t first, float* logits,
                          const Partial& out) {
  if constexpr (std::is_same_v<T, Bf16>) {
    if (!values_are_pairs(shape.value_dim)) return false;
    Weights<kQueries, InBf16> weights(shape, chunk, logits, first, out);
    weigh_pairs<kQueries>(shape, weights, values, chunk.tokens, out.acc + first * shape.value_width);
    weights.finish();
    return true;
  }
  return false;
}

}  // namespace
}  // namespace winnow
