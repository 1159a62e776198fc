// The chunk function of dense slots in bf16 whose keys meet queries as pairs of channels.
#pragma once

#include "attend/contract.hpp"
#include "attend/partials.hpp"
#include "attend/weights.hpp"
#include "dense/avx512/pair_keys.hpp"
#include "dense/chunk.hpp"
#include "dense/weighted_sum.hpp"
#include "simd/element.hpp"
#include "simd/unroll.hpp"

namespace winnow {
namespace {

// Calls body(first, Count<size>) for blocks that cover n queries, as for_query_blocks does, but 5, 6 and 7 are blocks of
// their own: the products of none are lost.
template <class Body>
inline void for_pair_blocks(int64_t n, const Body& body) {
  int64_t first = 0;
  for (; n - first > 8; first += 8) body(first, Count<8>{});
  switch (n - first) {
    case 1: return body(first, Count<1>{});
    case 2: return body(first, Count<2>{});
    case 3:
    case 4: return body(first, Count<4>{});
    case 5: return body(first, Count<5>{});
    case 6: return body(first, Count<6>{});
    case 7: return body(first, Count<7>{});
    default: return body(first, Count<8>{});
  }
}

inline void pair_chunk(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                       const Partial& out) {
  if (!are_pairs(shape)) return dense_chunk<Bf16>(shape, chunk, queries, scratch, out);
  clear(shape, out);
  const Bf16* values = static_cast<const Bf16*>(chunk.values);
  for_pair_blocks(shape.queries, [&](int64_t first, auto size) {
    constexpr int kQueries = decltype(size)::value;
    score_pairs<kQueries>(shape, chunk, queries, first, scratch.edge, scratch.logits);
    Weights<kQueries> weights(shape, chunk, scratch.logits, first, out);
    weigh_tokens<kQueries>(shape, weights, values, chunk.tokens, out.acc + first * shape.value_width);
    weights.finish();
  });
}

}  // namespace
}  // namespace winnow
