// The chunk function of packed storage. Keys and values are packed independently of each other: how logits are
// found depends on the keys' format only, how values are summed on the values' only.
#pragma once

#include "attend/contract.hpp"
#include "attend/partials.hpp"
#include "attend/queries.hpp"
#include "attend/weights.hpp"
#include "dense/pairs.hpp"
#include "packed/keys.hpp"
#include "packed/scratch.hpp"
#include "packed/slot_scales.hpp"
#include "packed/values.hpp"

namespace winnow {
namespace {

template <int kQueries, class T>
inline void packed_block(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                         int64_t first, const Partial& out) {
  const PackedScratch packed = packed_scratch(shape, scratch.packed);
  prefetch_scales<T>(chunk.part->keys, chunk);
  prefetch_scales<T>(chunk.part->values, chunk);
  score_packed<kQueries, T>(shape, chunk, queries, first, scratch, packed);
  const T* numbers = are_numbers(chunk.part->values) ? values_at<T>(shape, chunk) : nullptr;
  if (numbers && weigh_numbers<kQueries, T>(shape, chunk, numbers, first, scratch.logits, out)) return;
  Weights<kQueries> weights(shape, chunk, scratch.logits, first, out);
  weigh_packed<kQueries, T>(shape, chunk, weights, packed, out.acc + first * shape.value_width);
  weights.finish();
}

template <class T>
void packed_chunk(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                  const Partial& out) {
  clear(shape, out);
  for_blocks_of<T>(shape.queries, [&](int64_t first, auto size) {
    packed_block<decltype(size)::value, T>(shape, chunk, queries, scratch, first, out);
  });
}

}  // namespace
}  // namespace winnow
