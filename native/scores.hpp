// Query-key products of a few queries with many tokens. Include after a vec_*.hpp.
#pragma once

#include <cstring>

#include "contract.hpp"
#include "prefetch.hpp"
#include "query_blocks.hpp"

namespace winnow {
namespace {

// logits[q·kLogitStride + t] = query[q] · keys[t] for kQueries queries and width / kQueries tokens. `query`
// holds the first vector of every query, then the second of every query, ...: one pointer reaches them all.
//
// One accumulator per pair and one lane per pair after the reduction: every key is loaded and widened once
// for all queries, and the horizontal sums of a whole tile are taken together. kWholeLines says that a key
// fills whole cache lines; any further loop over the rest would make the compiler keep the accumulators in
// memory.
template <int kQueries, bool kWholeLines, class T>
inline void score_tile(const float* query, const T* keys, int64_t dim, const char* ahead, float* logits) {
  constexpr int kTokens = Vec::width / kQueries;
  constexpr int64_t kPerLine = kLine / static_cast<int64_t>(sizeof(T));
  Vec acc[Vec::width];
// Left to itself the compiler clears the array with a string instruction and so keeps it in memory.
#pragma GCC unroll 16
  for (Vec& a : acc) a = broadcast(0.0f);

  const auto accumulate = [&](int64_t d, const auto& load_keys) {
    Vec q[kQueries];
    for (int i = 0; i < kQueries; ++i) q[i] = load(query + d * kQueries + i * Vec::width);
    for (int t = 0; t < kTokens; ++t) {
      const Vec k = load_keys(keys + t * dim + d);
      for (int i = 0; i < kQueries; ++i) acc[i * kTokens + t] = fma(k, q[i], acc[i * kTokens + t]);
    }
  };
  const auto whole = [](const T* p) { return load(p); };

  int64_t d = 0;
  for (; d + kPerLine <= dim; d += kPerLine) {
    for (int t = 0; t < kTokens; ++t) {
      prefetch(ahead + (t * dim + d) * static_cast<int64_t>(sizeof(T)));
    }
    for (int64_t part = 0; part < kPerLine; part += Vec::width) accumulate(d + part, whole);
  }
  if constexpr (!kWholeLines) {
    for (; d + Vec::width <= dim; d += Vec::width) accumulate(d, whole);
    if (d < dim) accumulate(d, [&](const T* p) { return load_first(p, dim - d); });
  }

  alignas(64) float sums[Vec::width];
  store(sums, row_sums(acc));
  for (int i = 0; i < kQueries; ++i) {
    std::memcpy(logits + i * kLogitStride, sums + i * kTokens, kTokens * sizeof(float));
  }
}

// logits[q][t] for kQueries queries and all tokens of the chunk; writes up to a tile past the last token.
template <int kQueries, bool kWholeLines, class T>
inline void score_tokens(const Shape& shape, const Chunk& chunk, const float* query, void* edge, float* logits) {
  constexpr int kTokens = Vec::width / kQueries;
  const int64_t dim = shape.key_dim;
  const T* keys = static_cast<const T*>(chunk.keys);
  const T* end = keys + chunk.tokens * dim;
  int64_t t = 0;
  for (; t + kTokens <= chunk.tokens; t += kTokens) {
    const T* tile = keys + t * dim;
    score_tile<kQueries, kWholeLines>(query, tile, dim, ahead_of(tile, end, chunk.values), logits + t);
  }
  if (t < chunk.tokens) {
    // The rest is copied: a tile must not read past the end of the keys.
    T* tile = static_cast<T*>(edge);
    std::memcpy(tile, keys + t * dim, static_cast<size_t>((chunk.tokens - t) * dim) * sizeof(T));
    score_tile<kQueries, kWholeLines>(query, tile, dim, static_cast<const char*>(chunk.values),
                         logits + t);
  }
}

template <int kQueries, class T>
inline void score(const Shape& shape, const Chunk& chunk, const float* query, void* edge, float* logits) {
  if (shape.key_dim * static_cast<int64_t>(sizeof(T)) % kLine == 0) {
    score_tokens<kQueries, true, T>(shape, chunk, query, edge, logits);
  } else {
    score_tokens<kQueries, false, T>(shape, chunk, query, edge, logits);
  }
}

}  // namespace
}  // namespace winnow
