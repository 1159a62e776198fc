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
#include "packed/avx512/key_places.hpp"
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

// 64 channels of a key, 32 to a vector: kept entries with zeros between, and ±1 where a sign stands for what is gone.
struct KeyBlock {
  __m512i entries[2], signs[2];
};

template <class Kept>
__attribute__((always_inline)) inline KeyBlock expand_block(uint64_t mask, uint64_t negative, const uint8_t* entries) {
  const __m512i plus = _mm512_set1_epi16(1), minus = _mm512_set1_epi16(-1), zero = _mm512_setzero_si512();
  const int64_t count_low = count_bits(static_cast<uint32_t>(mask));
  const __mmask64 here = _cvtu64_mask64(mask), below = _cvtu64_mask64(negative);
  const __mmask64 here_high = _kshiftri_mask64(here, kAtOnce), below_high = _kshiftri_mask64(below, kAtOnce);
  const auto expand = [&](__mmask64 lanes, __mmask64 minuses, const uint8_t* from, __m512i& numbers, __m512i& signs)
      __attribute__((always_inline)) {
        numbers = expand_numbers(lanes, Kept::load(from));
        signs = blend_numbers(minuses, blend_numbers(lanes, plus, zero), minus);
      };
  KeyBlock block;
  expand(here, below, entries, block.entries[0], block.signs[0]);
  expand(here_high, below_high, entries + Kept::kBytes * count_low, block.entries[1], block.signs[1]);
  return block;
}

// Both sums of kQueries queries and kKeys keys, [query][key].
template <int kQueries, int kKeys, class Kept>
__attribute__((always_inline)) inline void sum_pairs(const uint16_t* kept, const uint16_t* pruned, int64_t stride,
                                                     const KeyPlace (&keys)[kKeys], int64_t dim,
                                                     typename Kept::Sum (&kept_sums)[kQueries * kKeys],
                                                     __m512i (&pruned_sums)[kQueries * kKeys]) {
  unroll<kQueries * kKeys>([&](auto i) {
    kept_sums[i] = Kept::zero();
    pruned_sums[i] = _mm512_setzero_si512();
  });
  int64_t used[kKeys] = {};
  // Adds so many halves of a block from channel d on, which is or is not the first.
  const auto add = [&](int64_t d, auto halves, auto first) __attribute__((always_inline)) {
    KeyBlock blocks[kKeys];
    unroll<kKeys>([&](auto k) __attribute__((always_inline)) {
      uint64_t here = load_word(keys[k].mask + d / 8);
      if constexpr (halves == 1) here &= 0xffffffffu;
      asm("" : "+r"(here));  // or it would be loaded as a mask of lanes and come back from there
      const uint64_t signs = first ? load_word(keys[k].signs) : bits_at(keys[k].signs, d - used[k]);
      blocks[k] = expand_block<Kept>(here, deposit(signs, ~here), keys[k].entries + Kept::kBytes * used[k]);
      used[k] += count_bits(here);
    });
    unroll<kQueries * halves>([&](auto i) __attribute__((always_inline)) {
      constexpr int q = i / halves, half = i % halves;
      const int64_t at = (d / kAtOnce + half) * stride + q * kAtOnce;
      __m512i kept_query = _mm512_loadu_si512(kept + at), pruned_query = _mm512_loadu_si512(pruned + at);
      if (kKeys > 1) asm("" : "+v"(kept_query), "+v"(pruned_query));  // or they would be loaded for each key
      unroll<kKeys>([&](auto k) __attribute__((always_inline)) {
        constexpr int pair = q * kKeys + k;
        kept_sums[pair] = Kept::add(kept_sums[pair], blocks[k].entries[half], kept_query);
        pruned_sums[pair] = Int16Pairs::add(pruned_sums[pair], blocks[k].signs[half], pruned_query);
      });
    });
  };
  int64_t d = 0;
  if (dim >= 2 * kAtOnce) {
    add(0, Count<2>{}, std::true_type{});
    for (d = 2 * kAtOnce; d + 2 * kAtOnce <= dim; d += 2 * kAtOnce) add(d, Count<2>{}, std::false_type{});
  }
  if (d < dim) add(d, Count<1>{}, std::false_type{});
}

// What the sums of the keys of a tile are multiplied by.
struct KeyFactors {
  alignas(64) float scales[Vec::width], statistics[Vec::width];

  template <class T>
  KeyFactors(const winnow_rows& rows, int64_t slot, int64_t keys, T) {
    const T *scale = static_cast<const T*>(rows.scales), *statistic = static_cast<const T*>(rows.stats);
    store(scales, scale ? load_up_to(scale + slot, keys) : broadcast(1.0f));
    store(statistics, rows.recovery == WINNOW_CONSTANT ? broadcast(rows.fill) : load_up_to(statistic + slot, keys));
  }
};

// logits[q][t] for the keys of a tile, while `later_bytes` bytes for each are asked for from `later` on.
template <int kQueries, class Kept>
inline void score_masked_tile(const PrunedQueries<kQueries>& queries, const KeyFactors& factors, int64_t dim,
                              KeyPlaces& places, const char* later, int64_t later_bytes, float* logits) {
  // Registers hold two sums of eight pairs.
  constexpr int kTokens = Vec::width / kQueries, kBlock = kQueries < 8 ? kQueries : 8, kKeys = kBlock < 5 ? 2 : 1;
  constexpr int kPairs = kBlock * kKeys;
  Vec sums[Vec::width];
  unroll<Vec::width - kQueries * kTokens>([&](auto i) { sums[kQueries * kTokens + i] = broadcast(0.0f); });
  KeyPlaces next = places;
  for (int first = 0; first < kTokens; first += kKeys) {
    KeyPlace keys[kKeys];
    unroll<kKeys>([&](auto k) {
      keys[k] = next.here();
      next.step([&] { return count_kept(keys[k].mask, dim); });
    });
    // Not those of all keys at once, for which it would be waited.
    prefetch_for_later(later + first * later_bytes, kKeys * later_bytes);
    unroll<kQueries / kBlock>([&](auto b) __attribute__((always_inline)) {
      typename Kept::Sum kept[kPairs];
      __m512i pruned[kPairs];
      sum_pairs<kBlock, kKeys, Kept>(queries.kept + b * kBlock * kAtOnce, queries.pruned + b * kBlock * kAtOnce,
                                     kQueries * kAtOnce, keys, dim, kept, pruned);
      unroll<kPairs>([&](auto i) __attribute__((always_inline)) {
        constexpr int q = b * kBlock + i / kKeys;
        const int t = first + i % kKeys;
        sums[q * kTokens + t] = fma({_mm512_cvtepi32_ps(pruned[i])}, broadcast(factors.statistics[t]),
                                    Kept::scaled(kept[i], queries.kept_unit[q] * factors.scales[t]));
      });
    });
  }
  places = next;
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

template <int kQueries, class T, class Kept>
inline int64_t score_masked(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                            const PackedScratch& packed, float* logits) {
  constexpr int kTokens = Vec::width / kQueries;
  const winnow_rows& rows = chunk.part->keys;
  const auto block = pruned_queries<kQueries, T, Kept>(shape, chunk, queries, first, packed.queries);
  MaskedRows reader(rows, chunk.part->slots, chunk.slot, shape.key_dim, sizeof(T));
  KeyPlaces places(rows, reader, shape.key_dim, Kept::kBytes);
  // Few bytes and many products here, many bytes and few products with the values: they are asked for meanwhile.
  const winnow_rows& values = chunk.part->values;
  const char* later = static_cast<const char*>(values.data) + chunk.slot * values.row_bytes;
  int64_t t = 0;
  for (; t < chunk.tokens && reader.open_ahead(kTokens); t += kTokens, later += kTokens * values.row_bytes) {
    const KeyFactors factors(rows, reader.slot(), kTokens, T{});
    score_masked_tile<kQueries, Kept>(block, factors, shape.key_dim, places, later, values.row_bytes, logits + t);
    const char* entries = reinterpret_cast<const char*>(reader.data());
    places.leave(kTokens, reader);
    const int64_t bytes = reinterpret_cast<const char*>(reader.data()) - entries;
    // Entries that are foreseen from the second-level cache only have to be there.
    kForesees ? prefetch_for_later(entries + 2 * kPrefetchBytes, bytes) : prefetch_row(entries, bytes);
  }
  return least(t, chunk.tokens);
}

// Logits of the first rows of the chunk, and of how many: none where the format is another, and not those of rows so
// near the end of an array that nothing may be read behind them. Writes up to a tile past the last.
template <int kQueries, class T>
inline int64_t score_pruned(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                            const PackedScratch& packed, float* logits) {
  const winnow_rows& rows = chunk.part->keys;
  if (!rows.masks || draws_sizes(rows.recovery) || rows.stats_width != statistics_of(rows.recovery)) return 0;
  if (shape.key_dim % kAtOnce || shape.key_dim > kMostMaskedDim) return 0;
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
