// The chunk function of dense storage: keys and values as they are, in fp32, bf16 or fp16.
#pragma once

#include "attend/contract.hpp"
#include "attend/partials.hpp"
#include "attend/queries.hpp"
#include "attend/weights.hpp"
#include "dense/pairs.hpp"
#include "dense/scores.hpp"
#include "dense/weighted_sum.hpp"

namespace winnow {
namespace {

template <int kQueries, class T>
inline void dense_block(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                        int64_t first, const Partial& out) {
  const T* values = static_cast<const T*>(chunk.values);
  if (!score_numbers<kQueries, T>(shape, chunk, queries, first, scratch)) {
    gather_queries<kQueries, T, T>(shape, queries, first, scratch.query);
    score<kQueries, T>(shape, chunk, scratch.query, scratch.edge, scratch.logits);
  }
  if (weigh_numbers<kQueries, T>(shape, chunk, values, first, scratch.logits, out)) return;
  Weights<kQueries> weights(shape, chunk, scratch.logits, first, out);
  weigh_tokens<kQueries>(shape, weights, values, chunk.tokens, out.acc + first * shape.value_width);
  weights.finish();
}

template <class T>
void dense_chunk(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                 const Partial& out) {
  clear(shape, out);
  constexpr int kMost = kInPairs<T> || Vec::width < 16 ? 8 : 16;  // whose sums registers hold
  for_whole_blocks<kMost>(shape.queries, [&](int64_t first, auto size) {
    dense_block<decltype(size)::value, T>(shape, chunk, queries, scratch, first, out);
  });
}

}  // namespace
}  // namespace winnow
