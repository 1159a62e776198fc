// Logits of keys that keep channels of their own, without writing keys out.
//
// q·k = sum over kept j of q_j·k_j + statistic · sum over pruned j of s_j·(q_j / n_j), s_j = ±1: kept entries are
// expanded to their channels with zeros between and meet the query; the signs, with zeros where entries were kept,
// meet the query over the norms. Both take 32 channels to an instruction, which needs AVX-512 VBMI2 to expand 16-bit
// numbers, VNNI for 16-bit integers and BF16 for products of the model's own numbers, which are exact. Queries over
// norms are rounded to 2^-15 of the largest or finer.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstring>
#include <type_traits>

#include "attend/contract.hpp"
#include "attend/queries.hpp"
#include "packed/avx512/expanded_keys.hpp"
#include "packed/fill.hpp"
#include "packed/masked_rows.hpp"
#include "packed/scratch.hpp"
#include "simd/avx512/pairs.hpp"
#include "simd/bits.hpp"
#include "simd/element.hpp"
#include "simd/scalar.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

constexpr int kAtOnce = 32;  // channels in a register

// Kept entries as they are, and as integers with a scale of the slot.
struct KeptNumbers : Bf16Pairs {
  static constexpr int64_t kBytes = 2;

  static __m512i load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static Vec scaled(Sum sum, float) { return {sum}; }
};

struct KeptIntegers : Int16Pairs {
  static constexpr int64_t kBytes = 1;

  static __m512i load(const uint8_t* p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static Vec scaled(Sum sum, float scale) { return Vec{_mm512_cvtepi32_ps(sum)} * broadcast(scale); }
};

// A block of queries, 32 channels of every query after another. Both sums of a query are in the same unit, a power of
// two: kept entries meet it exactly.
template <int kQueries>
struct PrunedQueries {
  const uint16_t* kept;    // bf16, or int16 for integers
  const uint16_t* pruned;  // int16
  float kept_unit[kQueries];            // of int16 for integers, in units
  alignas(64) float units[Vec::width];  // times the scaling, in the lanes of a tile
};

// One row, and what its sums are multiplied by.
struct MaskedRow {
  const uint8_t *mask, *entries, *signs;  // no signs: all are positive
  float scale, statistic;
};

// Bits of 32 channels from `first` on, of which at most 32 matter: fewer bytes than bits_at.
inline uint32_t few_bits_at(const uint8_t* bits, uint64_t first) {
  return static_cast<uint32_t>(load_word(bits + first / 8) >> first % 8);
}

// Both sums of kQueries queries and kTokens rows, [query][row].
template <int kQueries, int kTokens, class Kept>
__attribute__((always_inline)) inline void sum_pairs(const uint16_t* kept, const uint16_t* pruned, int64_t stride,
                                                     const MaskedRow* rows, int64_t steps,
                                                     typename Kept::Sum (&kept_sums)[kQueries * kTokens],
                                                     __m512i (&pruned_sums)[kQueries * kTokens]) {
  unroll<kQueries * kTokens>([&](auto i) {
    kept_sums[i] = Kept::zero();
    pruned_sums[i] = _mm512_setzero_si512();
  });
  const uint8_t* from[kTokens];
  uint64_t gone[kTokens];
  unroll<kTokens>([&](auto t) {
    from[t] = rows[t].entries;
    gone[t] = 0;
  });
  const __m512i plus = _mm512_set1_epi16(1), minus = _mm512_set1_epi16(-1), zero = _mm512_setzero_si512();
  for (int64_t step = 0; step < steps; ++step) {
    __m512i entries[kTokens], signs[kTokens];
    unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
      uint32_t mask;
      std::memcpy(&mask, rows[t].mask + 4 * step, sizeof mask);
      asm("" : "+r"(mask));  // or it would be loaded as a mask of lanes and come back from there
      const uint32_t negative = rows[t].signs ? _pdep_u32(few_bits_at(rows[t].signs, gone[t]), ~mask) : 0;
      entries[t] = expand_numbers(mask, Kept::load(from[t]));
      signs[t] = _mm512_mask_mov_epi16(_mm512_mask_blend_epi16(mask, plus, zero), negative, minus);
      const uint32_t count = static_cast<uint32_t>(__builtin_popcount(mask));
      from[t] += Kept::kBytes * count;
      gone[t] += kAtOnce - count;
    });
    unroll<kQueries>([&](auto q) __attribute__((always_inline)) {
      const __m512i kept_query = _mm512_loadu_si512(kept + q * kAtOnce);
      const __m512i pruned_query = _mm512_loadu_si512(pruned + q * kAtOnce);
      unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
        constexpr int pair = q * kTokens + t;
        kept_sums[pair] = Kept::add(kept_sums[pair], entries[t], kept_query);
        pruned_sums[pair] = Int16Pairs::add(pruned_sums[pair], signs[t], pruned_query);
      });
    });
    kept += stride;
    pruned += stride;
  }
}

// logits[q][t] for the rows of a tile.
template <int kQueries, class Kept>
inline void score_masked_tile(const PrunedQueries<kQueries>& queries, const MaskedRow* rows, int64_t steps,
                              float* logits) {
  // Registers hold two sums of eight pairs.
  constexpr int kTokens = Vec::width / kQueries, kBlock = kQueries < 8 ? kQueries : 8, kRows = kBlock < 5 ? 2 : 1;
  constexpr int kPairs = kBlock * kRows;
  Vec sums[Vec::width];
  unroll<Vec::width - kQueries * kTokens>([&](auto i) { sums[kQueries * kTokens + i] = broadcast(0.0f); });
  unroll<kTokens / kRows>([&](auto r) __attribute__((always_inline)) {
    unroll<kQueries / kBlock>([&](auto b) __attribute__((always_inline)) {
      typename Kept::Sum kept[kPairs];
      __m512i pruned[kPairs];
      sum_pairs<kBlock, kRows, Kept>(queries.kept + b * kBlock * kAtOnce, queries.pruned + b * kBlock * kAtOnce,
                                     kQueries * kAtOnce, rows + r * kRows, steps, kept, pruned);
      unroll<kPairs>([&](auto i) __attribute__((always_inline)) {
        constexpr int q = b * kBlock + i / kRows, t = r * kRows + i % kRows;
        sums[q * kTokens + t] = fma({_mm512_cvtepi32_ps(pruned[i])}, broadcast(rows[t].statistic),
                                    Kept::scaled(kept[i], queries.kept_unit[q] * rows[t].scale));
      });
    });
  });
  alignas(64) float dots[Vec::width];
  store(dots, row_sums(sums) * load(queries.units));
  for (int q = 0; q < kQueries; ++q) {
    std::memcpy(logits + q * kLogitStride, dots + q * kTokens, kTokens * sizeof(float));
  }
}

// Sixteen channels of a query, times those of `factors`, or null for 1.
template <class T>
inline Vec channels_at(const T* query, const float* factors, int64_t d) {
  const Vec numbers = load(query + d);
  return factors ? numbers * load(factors + d) : numbers;
}

template <class T>
inline float largest_channel(const T* query, const float* factors, int64_t dim) {
  Vec most = broadcast(0.0f);
  for (int64_t d = 0; d < dim; d += Vec::width) most = larger_magnitude(most, channels_at(query, factors, d));
  return lane_max(most);
}

// The power of two that makes the largest number a whole one of 15 bits.
inline float whole_factor(float largest) {
  int exponent;
  std::frexp(largest, &exponent);
  // Of numbers smaller than this the factor could be infinite.
  return std::ldexp(1.0f, 15 - (exponent > -100 ? exponent : -100));
}

inline void store_saturated(uint16_t* to, Vec numbers) {
  const __m512i whole = _mm512_cvtps_epi32(numbers.v);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtsepi32_epi16(whole));
}

// A block of queries, in `memory`; queries of the padding are zero.
template <int kQueries, class T, class Kept>
inline PrunedQueries<kQueries> pruned_queries(const Shape& shape, const Chunk& chunk, const Queries& queries,
                                              int64_t first, float* memory) {
  constexpr int kTokens = Vec::width / kQueries;
  const winnow_rows& rows = chunk.part->keys;
  const float* norms = rows.inverse_norms ? rows.inverse_norms + chunk.head * shape.key_dim : nullptr;
  const int64_t count = kQueries * shape.key_dim;
  uint16_t *kept = reinterpret_cast<uint16_t*>(memory), *pruned = kept + count;
  std::memset(kept, 0, static_cast<size_t>(2 * count) * sizeof(uint16_t));
  PrunedQueries<kQueries> result{kept, pruned, {}, {}};
  for (int q = 0; q < kQueries && first + q < shape.queries; ++q) {
    const T* query = static_cast<const T*>(query_at(shape, queries, first + q, sizeof(T)));
    const float factor = whole_factor(largest_channel(query, norms, shape.key_dim));
    const float kept_factor = whole_factor(largest_channel<T>(query, nullptr, shape.key_dim));
    result.kept_unit[q] = factor / kept_factor;
    for (int t = 0; t < kTokens; ++t) result.units[q * kTokens + t] = shape.scaling / factor;
    for (int64_t d = 0; d < shape.key_dim; d += Vec::width) {
      const int64_t at = d / kAtOnce * kAtOnce * kQueries + q * kAtOnce + d % kAtOnce;
      store_saturated(pruned + at, channels_at(query, norms, d) * broadcast(factor));
      if constexpr (std::is_same_v<Kept, KeptIntegers>) {
        store_saturated(kept + at, load(query + d) * broadcast(kept_factor));
      } else {
        store(reinterpret_cast<Bf16*>(kept + at), load(query + d) * broadcast(factor));
      }
    }
  }
  return result;
}

// The next kTokens rows; where fewer are left, the last is repeated.
template <int kTokens, class T>
inline void next_rows(const winnow_rows& rows, int64_t left, MaskedRows& reader, MaskedRow* tile) {
  const T* scales = static_cast<const T*>(rows.scales);
  const T* stats = rows.recovery == WINNOW_CONSTANT ? nullptr : static_cast<const T*>(rows.stats);
  for (int64_t t = 0; t < kTokens; ++t) {
    if (t >= left) {
      tile[t] = tile[t - 1];
      continue;
    }
    const int64_t slot = reader.slot();
    tile[t] = {reader.mask(), reader.data(), reader.signs(), scales ? to_float(scales[slot]) : 1.0f,
               stats ? to_float(stats[slot * rows.stats_width]) : rows.fill};
    reader.prefetch_next();
    reader.step(rows.starts ? reader.count_kept() : 0);
  }
}

template <int kQueries, class T, class Kept>
inline int64_t score_masked(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                            const PackedScratch& packed, float* logits) {
  constexpr int kTokens = Vec::width / kQueries;
  const winnow_rows& rows = chunk.part->keys;
  const auto block = pruned_queries<kQueries, T, Kept>(shape, chunk, queries, first, packed.queries);
  MaskedRows reader(rows, chunk.part->slots, chunk.slot, shape.key_dim, sizeof(T));
  MaskedRow tile[kTokens];
  // Few bytes and many products here, many bytes and few products with the values: they are asked for meanwhile.
  const winnow_rows& values = chunk.part->values;
  const char* later = static_cast<const char*>(values.data) + chunk.slot * values.row_bytes;
  int64_t t = 0;
  for (; t < chunk.tokens && reader.open_ahead(kTokens); t += kTokens, later += kTokens * values.row_bytes) {
    next_rows<kTokens, T>(rows, chunk.tokens - t, reader, tile);
    prefetch_for_later(later, kTokens * values.row_bytes);
    score_masked_tile<kQueries, Kept>(block, tile, shape.key_dim / kAtOnce, logits + t);
  }
  return least(t, chunk.tokens);
}

// Logits of the first rows of the chunk, and of how many: none where the format is another, and not those of rows so
// near the end of an array that nothing may be read behind them. Writes up to a tile past the last.
template <int kQueries, class T>
inline int64_t score_pruned(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                            const PackedScratch& packed, float* logits) {
  const winnow_rows& rows = chunk.part->keys;
  // Longer rows could have sums of products beyond 32 bits.
  constexpr int64_t kMostChannels = 4096;
  if (!rows.masks || draws_sizes(rows.recovery) || shape.key_dim % kAtOnce || shape.key_dim > kMostChannels) {
    return 0;
  }
  if constexpr (!std::is_same_v<T, float>) {
    if (rows.bits == 8) return score_masked<kQueries, T, KeptIntegers>(shape, chunk, queries, first, packed, logits);
  }
  if constexpr (std::is_same_v<T, Bf16>) {
    if (rows.bits == 16) return score_masked<kQueries, T, KeptNumbers>(shape, chunk, queries, first, packed, logits);
  }
  return 0;
}

}  // namespace
}  // namespace winnow
