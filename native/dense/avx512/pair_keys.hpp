// Logits of dense keys in bf16 as products of pairs, for AVX-512 BF16: a lane of a product is two channels of a key with
// the same two of a query, both as they are.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "attend/contract.hpp"
#include "attend/queries.hpp"
#include "simd/avx512/pairs.hpp"
#include "simd/avx512/token_lanes.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Channels of a vector of pairs, and the most that keys have.
constexpr int64_t kPairChannels = 32, kMostPairDim = 256;

// From this many queries on, a lane of a sum is a token, and rows change places with channels while they are read. Below
// it is a pair of channels, and sums over the lanes are taken in the end: more work with every query. Measured on Zen 4 and 5.
constexpr int kFewestInTokenLanes = kZenGeneration == 4 ? 4 : 5;

// True where keys are whole vectors of pairs.
inline bool keys_are_pairs(int64_t dim) { return dim % kPairChannels == 0 && dim <= kMostPairDim; }

// The queries [first, first + kQueries) as they are, those of the padding zero.
template <int kQueries>
struct PairQueries {
  // Not a power of two: rows would otherwise fall into the same cache sets.
  static constexpr int64_t kStride = kMostPairDim + kPairChannels;
  alignas(64) Bf16 rows[kQueries][kStride];

  PairQueries(const Shape& shape, const Queries& queries, int64_t first) {
    const size_t bytes = static_cast<size_t>(shape.key_dim) * sizeof(Bf16);
    for (int64_t q = 0; q < kQueries; ++q) {
      if (first + q < shape.queries) {
        std::memcpy(rows[q], query_at(shape, queries, first + q, sizeof(Bf16)), bytes);
      } else {
        std::memset(rows[q], 0, bytes);
      }
    }
  }
};

// Logits of a tile of keys, whose lanes are tokens.
template <int kQueries>
struct TokenLanes {
  static constexpr int kVectors = token_vectors(kQueries);
  static constexpr int64_t kTokens = kVectors * Vec::width;

  // logits[q][t] for a tile.
  template <class Ahead>
  static void score(const PairQueries<kQueries>& queries, const Bf16* keys, int64_t dim, float scaling, Ahead ahead,
                    float* logits) {
    constexpr int64_t kBytes = kLaneChannels * sizeof(Bf16), kLines = kTokens * kBytes / kLine;
    const char* rows = reinterpret_cast<const char*>(keys);
    const int64_t stride = dim * static_cast<int64_t>(sizeof(Bf16));
    __m512 sums[kQueries * kVectors];
    for (__m512& sum : sums) sum = Bf16Pairs::zero();
    for (int64_t d = 0; d < dim; d += kLaneChannels, rows += kBytes, ahead += kLines * kLine) {
      unroll<kLines>([&](auto line) { prefetch_busy(ahead + line * kLine); });
      add_channels<kQueries, queries.kStride, Bf16Pairs>(queries.rows[0] + d, rows, stride, sums);
    }
    unroll<kQueries * kVectors>([&](auto i) {
      store(logits + i / kVectors * kLogitStride + i % kVectors * Vec::width, Vec{sums[i]} * broadcast(scaling));
    });
  }
};

// The same, whose lanes are pairs of channels: a sum for every query and token.
template <int kQueries>
struct PairLanes {
  static constexpr int kTokens = Vec::width / kQueries;

  template <class Ahead>
  static void score(const PairQueries<kQueries>& queries, const Bf16* keys, int64_t dim, float scaling, Ahead ahead,
                    float* logits) {
    Vec sums[Vec::width];
    unroll<Vec::width>([&](auto i) { sums[i] = broadcast(0.0f); });
    const auto add = [&](auto t, int64_t d, const __m512i(&query)[kQueries]) __attribute__((always_inline)) {
      prefetch_span<kLine, (kQueries > 1)>(ahead);
      ahead += kLine;
      const __m512i key = _mm512_loadu_si512(keys + t * dim + d);
      unroll<kQueries>([&](auto q) __attribute__((always_inline)) {
        constexpr int sum = q * kTokens + t;
        sums[sum] = {Bf16Pairs::add(sums[sum].v, key, query[q])};
      });
    };
    const auto load_queries = [&](int64_t d, __m512i(&query)[kQueries]) __attribute__((always_inline)) {
      unroll<kQueries>([&](auto q) { query[q] = _mm512_load_si512(queries.rows[q] + d); });
    };
    __m512i query[kQueries];
    if constexpr (kForesees) {
      // Row by row.
      unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
        for (int64_t d = 0; d < dim; d += kPairChannels) {
          load_queries(d, query);
          add(t, d, query);
        }
      });
    } else {
      for (int64_t d = 0; d < dim; d += kPairChannels) {
        load_queries(d, query);
        unroll<kTokens>([&](auto t) __attribute__((always_inline)) { add(t, d, query); });
      }
    }
    alignas(64) float dots[Vec::width];
    store(dots, row_sums(sums) * broadcast(scaling));
    for (int q = 0; q < kQueries; ++q) {
      std::memcpy(logits + q * kLogitStride, dots + q * kTokens, kTokens * sizeof(float));
    }
  }
};

// logits[q][t] for the queries [first, first + kQueries) and all tokens of a chunk; writes up to a tile past the last
// token. `edge` is for the rows of a tile.
template <int kQueries>
inline void score_pairs(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first, void* edge,
                        float* logits) {
  using Tile = std::conditional_t<kQueries >= kFewestInTokenLanes, TokenLanes<kQueries>, PairLanes<kQueries>>;
  const int64_t dim = shape.key_dim, row_bytes = dim * static_cast<int64_t>(sizeof(Bf16));
  const PairQueries<kQueries> pairs(shape, queries, first);
  const Bf16* keys = static_cast<const Bf16*>(chunk.keys);
  const Bf16* end = keys + chunk.tokens * dim;
  for (int64_t t = 0; t < chunk.tokens; t += Tile::kTokens) {
    const Bf16* tile = keys + t * dim;
    const char* ahead = ahead_of(tile, end, chunk.values);
    if (chunk.tokens - t < Tile::kTokens) {
      // The rest is copied: a tile must not read past the end of the keys. What follows is cleared although nobody uses
      // the result: stray memory is full of subnormals.
      const size_t size = static_cast<size_t>(Tile::kTokens * dim) * sizeof(Bf16);
      const size_t used = static_cast<size_t>((chunk.tokens - t) * dim) * sizeof(Bf16);
      std::memcpy(edge, tile, used);
      std::memset(static_cast<char*>(edge) + used, 0, size - used);
      tile = static_cast<const Bf16*>(edge);
    }
    with_requests<kQueries>(row_bytes, ahead, [&](auto lines) {
      Tile::score(pairs, tile, dim, shape.scaling, lines, logits + t);
    });
  }
}

// The same where the model's numbers are bf16 and keys whole vectors of pairs; false elsewhere.
template <int kQueries, class T>
inline bool score_numbers(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                          const Scratch& scratch) {
  if constexpr (std::is_same_v<T, Bf16>) {
    if (!keys_are_pairs(shape.key_dim)) return false;
    score_pairs<kQueries>(shape, chunk, queries, first, scratch.edge, scratch.logits);
    return true;
  }
  return false;
}

}  // namespace
}  // namespace winnow
