// Query-key products of a few queries with many tokens.
#pragma once

#include <cstring>
#include <type_traits>

#include "attend/contract.hpp"
#include "attend/queries.hpp"
#include "dense/token_scores.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Adds the products of one or two vectors (kVectors) of kTokens keys and kQueries queries to acc[query][token].
// Whichever there are fewer of, keys or queries, stays in registers; each key is loaded and widened once.
// Always inlined: with several callers the compiler would keep the accumulators in memory.
template <int kQueries, int kTokens, int kVectors, class LoadKey>
__attribute__((always_inline)) inline void accumulate(Vec (&acc)[Vec::width], const float* query,
                                                      const LoadKey& load_key) {
  const auto load_query = [&](auto i, auto vector) __attribute__((always_inline)) {
    return load(query + (vector * kQueries + i) * Vec::width);
  };
  if constexpr (kQueries <= kTokens) {
    Vec q[kQueries * kVectors];
    unroll<kQueries * kVectors>([&](auto i) { q[i] = load_query(Count<i % kQueries>{}, Count<i / kQueries>{}); });
    unroll<kTokens>([&](auto t) {
      Vec k[kVectors];
      load_key(t, k);
      unroll<kQueries * kVectors>([&](auto i) {
        constexpr int pair = i % kQueries * kTokens + t;
        acc[pair] = fma(k[i / kQueries], q[i], acc[pair]);
      });
    });
  } else {
    Vec k[kTokens][kVectors];
    unroll<kTokens>([&](auto t) { load_key(t, k[t]); });
    unroll<kQueries * kVectors>([&](auto i) {
      Vec q = load_query(Count<i % kQueries>{}, Count<i / kQueries>{});
      if constexpr (kTokens > 1) load_once(q);
      unroll<kTokens>([&](auto t) {
        constexpr int pair = i % kQueries * kTokens + t;
        acc[pair] = fma(k[t][i / kQueries], q, acc[pair]);
      });
    });
  }
}

// True where a row is read to its end before the next: the processor foresees that, and few queries stay at hand for it.
template <int kQueries, class T>
constexpr bool kRowByRow = kForesees && kQueries <= (sizeof(T) == 4 ? 4 : 2);

// The same products of kTokens whole keys, a key after another.
template <int kQueries, int kTokens, bool kBusy, class T, class Ahead>
__attribute__((always_inline)) inline void add_rows(Vec (&acc)[Vec::width], const float* query, const T* keys, int64_t dim,
                                                    Ahead ahead) {
  constexpr int64_t kPair = 2 * Vec::width, kBytes = kPair * static_cast<int64_t>(sizeof(T));
  unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
    for (int64_t d = 0; d < dim; d += kPair, ahead += kBytes) {
      prefetch_span<kBytes, kBusy>(ahead);
      Vec k[2];
      load_pair(keys + t * dim + d, k[0], k[1]);
      unroll<2 * kQueries>([&](auto i) __attribute__((always_inline)) {
        constexpr int pair = i % kQueries * kTokens + t;
        acc[pair] = fma(k[i / kQueries], load(query + d * kQueries + i * Vec::width), acc[pair]);
      });
    }
  });
}

// Lane q·kTokens + t: query[q] · keys[t] for kQueries queries and kTokens = width / kQueries tokens. `query`
// holds the first vector of every query, then the second of every query, ...: one pointer reaches them all.
//
// One accumulator per pair and one lane per pair after the reduction: the horizontal sums of a whole tile are
// taken together. kWholePairs says that a key fills whole pairs of vectors; any further loop over the rest
// would make the compiler keep the accumulators in memory.
template <int kQueries, bool kWholePairs, bool kBusy, class T, class Ahead>
inline Vec tile_products(const float* query, const T* keys, int64_t dim, Ahead ahead) {
  constexpr int kTokens = Vec::width / kQueries;
  constexpr int64_t kPair = 2 * Vec::width;
  constexpr int64_t kBytes = static_cast<int64_t>(sizeof(T));
  // Lines are asked for in the order of memory, which the second-level cache foresees, and not in that of reading; pairs of
  // lines, but for kZen, as they are read (all measured).
  constexpr bool kInOrder = kZen || kPair * kBytes <= kLine;
  Vec acc[Vec::width];
  unroll<Vec::width>([&](auto i) { acc[i] = broadcast(0.0f); });

  if constexpr (kWholePairs && kRowByRow<kQueries, T>) {
    add_rows<kQueries, kTokens, kBusy>(acc, query, keys, dim, ahead);
    return row_sums(acc);
  }
  int64_t d = 0;
  for (; d + kPair <= dim; d += kPair) {
    accumulate<kQueries, kTokens, 2>(acc, query + d * kQueries, [&](auto t, Vec(&k)[2]) {
      constexpr int64_t number = decltype(t)::value * kPair;
      if constexpr (!kInOrder) {
        prefetch_span<kPair * kBytes, kBusy>(ahead + (t * dim + d) * kBytes);
      } else if constexpr (number * kBytes % kLine == 0) {
        prefetch_span<kPair * kBytes, kBusy>(ahead + (d * kTokens + number) * kBytes);
      }
      load_pair(keys + t * dim + d, k[0], k[1]);
    });
  }
  if constexpr (!kWholePairs) {
    if (d + Vec::width <= dim) {
      accumulate<kQueries, kTokens, 1>(acc, query + d * kQueries,
                                       [&](auto t, Vec(&k)[1]) { k[0] = load(keys + t * dim + d); });
      d += Vec::width;
    }
    if (d < dim) {
      accumulate<kQueries, kTokens, 1>(
          acc, query + d * kQueries, [&](auto t, Vec(&k)[1]) { k[0] = load_first(keys + t * dim + d, dim - d); });
    }
  }

  return row_sums(acc);
}

// Tokens that are scored together: as many as fill a vector with their logits, or a vector of them where those are turned.
template <int kQueries>
constexpr int kScoredTogether = kTurnsSums<kQueries> ? Vec::width : Vec::width / kQueries;

// logits[q·kLogitStride + t] of a tile.
template <int kQueries, bool kWholePairs, bool kBusy, class T, class Ahead>
inline void score_tile(const float* query, const T* keys, int64_t dim, const Ahead& ahead, float* logits) {
  const auto products_from = [&](int64_t token) __attribute__((always_inline)) {
    const int64_t number = token * dim;
    const Ahead asked = ahead + number * static_cast<int64_t>(sizeof(T));
    return tile_products<kQueries, kWholePairs, kBusy>(query, keys + number, dim, asked);
  };
  if constexpr (kTurnsSums<kQueries>) {
    turn_sums<kQueries>(products_from, logits);
  } else {
    constexpr int kTokens = kScoredTogether<kQueries>;
    alignas(64) float sums[Vec::width];
    store(sums, products_from(0));
    for (int i = 0; i < kQueries; ++i) {
      std::memcpy(logits + i * kLogitStride, sums + i * kTokens, kTokens * sizeof(float));
    }
  }
}

// Logits of all tokens of the chunk: score_at(keys, ahead, logits) finds those of kTokens. Writes up to as many past the
// last token.
template <int kTokens, class T, class ScoreAt>
inline void score_tokens(const Shape& shape, const Chunk& chunk, void* edge, float* logits, const ScoreAt& score_at) {
  const int64_t dim = shape.key_dim;
  const T* keys = static_cast<const T*>(chunk.keys);
  const T* end = keys + chunk.tokens * dim;
  int64_t t = 0;
  for (; t + kTokens <= chunk.tokens; t += kTokens) {
    const T* tile = keys + t * dim;
    score_at(tile, ahead_of(tile, end, chunk.values), logits + t);
  }
  if (t < chunk.tokens) {
    // The rest is copied: a tile must not read past the end of the keys. What follows is cleared although
    // nobody uses the result, since stray memory is full of subnormals, which cost a hundred cycles each.
    T* tile = static_cast<T*>(edge);
    const size_t size = static_cast<size_t>(kTokens * dim) * sizeof(T);
    const size_t used = static_cast<size_t>((chunk.tokens - t) * dim) * sizeof(T);
    std::memcpy(tile, keys + t * dim, used);
    std::memset(static_cast<char*>(edge) + used, 0, size - used);
    score_at(tile, static_cast<const char*>(chunk.values), logits + t);
  }
}

// logits[q][t] for kQueries queries and all tokens of the chunk; kBusy says how keys are prefetched.
template <int kQueries, class T, bool kBusy = meet_arithmetic(kQueries, sizeof(T))>
inline void score(const Shape& shape, const Chunk& chunk, const float* query, void* edge, float* logits) {
  const int64_t dim = shape.key_dim;
  const bool are_whole_pairs = dim % (2 * Vec::width) == 0;
  if constexpr (kMostInTokenLanes<kQueries, T> > 0) {
    if (are_whole_pairs && dim <= kMostInTokenLanes<kQueries, T>) {
      return score_tokens<Vec::width, T>(shape, chunk, edge, logits, [&](const T* keys, const char* ahead, float* to) {
        score_token_lanes<kQueries, kBusy>(query, keys, dim, ahead, to);
      });
    }
  }
  const auto score_tiles_of = [&](auto whole_pairs) {
    score_tokens<kScoredTogether<kQueries>, T>(shape, chunk, edge, logits, [&](const T* keys, const char* ahead, float* to) {
      with_requests<kQueries>(dim * static_cast<int64_t>(sizeof(T)), ahead, [&](auto lines) {
        score_tile<kQueries, decltype(whole_pairs)::value, kBusy>(query, keys, dim, lines, to);
      });
    });
  };
  are_whole_pairs ? score_tiles_of(std::true_type{}) : score_tiles_of(std::false_type{});
}

}  // namespace
}  // namespace winnow
