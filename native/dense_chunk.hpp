// The chunk function of dense storage: keys and values as they are, in fp32, bf16 or fp16.
// Include after a vec_*.hpp.
#pragma once

#include <cstring>
#include <type_traits>

#include "contract.hpp"
#include "query_blocks.hpp"
#include "scores.hpp"
#include "softmax.hpp"
#include "weighted_sum.hpp"

namespace winnow {
namespace {

// Tokens whose values pass through the registers together: few enough to stay in the first-level cache.
constexpr int64_t kValueBlock = 32;

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

inline const void* query_at(const Shape& shape, const Queries& queries, int64_t query, int64_t element_bytes) {
  const int64_t element =
      shape.token_of(query) * queries.token_stride + shape.head_of(query) * queries.head_stride;
  return static_cast<const char*>(queries.data) + element * element_bytes;
}

// A block of queries in fp32, in the order that score_tile reads, scaled here instead of once per logit.
// Queries of the padding are zero. Keys of type Key meet them: the order of channels is that of its load_pair.
template <int kQueries, class Key, class T>
inline void gather_queries(const Shape& shape, const Queries& queries, int64_t first, float* block) {
  const int64_t dim = shape.key_dim;
  const Vec scaling = broadcast(shape.scaling);
  std::memset(block, 0, static_cast<size_t>(kQueries * shape.query_width) * sizeof(float));
  for (int64_t i = 0; i < kQueries && first + i < shape.queries; ++i) {
    const T* from = static_cast<const T*>(query_at(shape, queries, first + i, sizeof(T)));
    float* to = block + i * Vec::width;
    int64_t d = 0;
    for (; d + 2 * Vec::width <= dim; d += 2 * Vec::width) {
      Vec a, b;
      if constexpr (std::is_same_v<Key, T>) {
        load_pair(from + d, a, b);
      } else {
        a = load(from + d);
        b = load(from + d + Vec::width);
      }
      store(to + d * kQueries, a * scaling);
      store(to + (d + Vec::width) * kQueries, b * scaling);
    }
    if (d + Vec::width <= dim) {
      store(to + d * kQueries, load(from + d) * scaling);
      d += Vec::width;
    }
    if (d < dim) store(to + d * kQueries, load_first(from + d, dim - d) * scaling);
  }
}

inline int64_t visible_tokens(const Shape& shape, const Chunk& chunk, int64_t query) {
  const int64_t visible = chunk.visible + shape.token_of(query);
  return visible < 0 ? 0 : least(visible, chunk.tokens);
}

// Logits of a block of queries -> weights, in place, with their maxima and sums.
template <int kQueries>
inline void softmax_block(const Shape& shape, const Chunk& chunk, float* logits, int64_t first, const void* values,
                          const void* last, const Partial& out) {
  for (int64_t i = 0; i < kQueries; ++i) {
    const int64_t query = first + i;
    const int64_t visible = query < shape.queries ? visible_tokens(shape, chunk, query) : 0;
    // The first values have been on their way since the last keys; every row asks for what lies behind.
    const char* next = static_cast<const char*>(values) + i * chunk.tokens / Vec::width * kLine;
    const RowSoftmax row = softmax_row(logits + i * kLogitStride, visible, chunk.tokens, shape.softcap,
                                       clamped_ahead_of(next, last));
    out.max[query] = row.max;
    out.sum[query] = row.sum;
  }
}

template <int kQueries, class T>
inline void dense_block(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                        int64_t first, const Partial& out) {
  const T* values = static_cast<const T*>(chunk.values);
  const T* last = values + chunk.tokens * shape.value_dim - 1;
  float* acc = out.acc + first * shape.value_width;
  gather_queries<kQueries, T, T>(shape, queries, first, scratch.query);
  score<kQueries, T>(shape, chunk, scratch.query, scratch.edge, scratch.logits);
  softmax_block<kQueries>(shape, chunk, scratch.logits, first, values, last, out);
  for (int64_t t = 0; t < chunk.tokens; t += kValueBlock) {
    const T* block = values + t * shape.value_dim;
    weigh<kQueries>(shape, scratch.logits + t, block, least(kValueBlock, chunk.tokens - t),
                    clamped_ahead_of(block, last), acc);
  }
}

inline void clear(const Shape& shape, const Partial& out) {
  for (int64_t query = 0; query < shape.stats_width(); query += Vec::width) {
    store(out.max + query, broadcast(kNoMax));
    store(out.sum + query, broadcast(0.0f));
  }
  std::memset(out.acc, 0, static_cast<size_t>(shape.acc_size()) * sizeof(float));
}

template <class T>
void dense_chunk(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                 const Partial& out) {
  clear(shape, out);
  for_query_blocks(shape.queries, [&](int64_t first, auto size) {
    dense_block<decltype(size)::value, T>(shape, chunk, queries, scratch, first, out);
  });
}

}  // namespace
}  // namespace winnow
