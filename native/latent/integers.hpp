// Packed latents of 16-bit models as integers, which are never unpacked to fp32: they meet queries as packed keys do, and
// weights as packed values do, where the processor multiplies integers (packed/dots.hpp).
//
// So a query is rounded to 2^-15 of its largest channel, in the coordinates of what it meets, and a weight times the scale of
// its latent to 2^-15 of the largest of 128 tokens. Latents whose scales are of groups of slots are left to fp32, since values
// have no such format; so are rotated channels with zero points, since keys have none in theirs.
#pragma once

#include <cstdint>

#include "attend/contract.hpp"
#include "attend/partials.hpp"
#include "attend/weights.hpp"
#include "latent/queries.hpp"
#include "latent/scratch.hpp"
#include "packed/dots.hpp"
#include "packed/format.hpp"
#include "packed/keys.hpp"
#include "packed/queries.hpp"
#include "packed/scratch.hpp"
#include "packed/slot_scales.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// True where both parts of a chunk are multiplied so, or rotated channels are numbers as they are.
template <class T>
inline bool are_integers(const Shape& shape, const winnow_part& part) {
  const winnow_rows &latents = part.keys, &rotated = part.values;
  if (latents.scaling == WINNOW_GROUPED || rotated.scaling == WINNOW_GROUPED) return false;
  return scores_int8<T>(latents, shape.value_dim) && weighs_int8<T>(latents, shape.value_dim) &&
         (are_numbers(rotated) || scores_int8<T>(rotated, rotated_dim(shape)));
}

// Calls body(first, Count<size>) for blocks that cover n queries; the last may run past n, as in for_query_blocks.
template <class Body>
inline void for_integer_blocks(int64_t n, const Body& body) {
  int64_t first = 0;
  const auto take = [&](auto size) {
    body(first, size);
    first += size;
  };
  while (n - first > 12) take(Count<16>{});
  if (n - first > 4) take(Count<8>{});
  if (n > first) take(Count<4>{});
}

// A chunk of one side of another: its rows are both keys and values.
struct OneSide {
  winnow_part part;
  Chunk chunk;

  OneSide(const Chunk& of, const winnow_rows& rows) : part(*of.part), chunk(of) {
    part.keys = part.values = rows;
    chunk.part = &part;
  }
  OneSide(const OneSide&) = delete;
  OneSide& operator=(const OneSide&) = delete;
};

// logits[q][t] = latents[q][t] times the scale of slot t + rotated[q][t] times that of its rotated channels + bias[q]
template <int kQueries, class T>
inline void join_logits(const Chunk& chunk, const float* rotated, const float (&bias)[kQueries], float* latents) {
  const winnow_part& part = *chunk.part;
  const T *of_latents = slot_scales<T>(part.keys, chunk), *of_rotated = slot_scales<T>(part.values, chunk);
  for (int64_t t = 0; t < chunk.tokens; t += Vec::width) {
    const auto load_scales = [&](const T* scales) {
      return scales ? load_up_to(scales + t, chunk.tokens - t) : broadcast(1.0f);
    };
    const Vec latent_scale = load_scales(of_latents), rotated_scale = load_scales(of_rotated);
    unroll<kQueries>([&](auto q) {
      float* at = latents + q * kLogitStride + t;
      const Vec other = fma(load(rotated + q * kLogitStride + t), rotated_scale, broadcast(bias[q]));
      store(at, fma(load(at), latent_scale, other));
    });
  }
}

// scratch.logits[q][t] for the queries [first, first + kQueries) and all tokens of a chunk, whose sides are given as well.
template <int kQueries, class T>
inline void score_sides(const Shape& shape, const Chunk& chunk, const Chunk& latents, const Chunk& rotated,
                        const Queries& queries, int64_t first, const Scratch& scratch, const PackedScratch& packed) {
  const Shape of_latents = of_channels(shape, shape.value_dim), of_rotated = of_channels(shape, rotated_dim(shape));
  const Queries behind = from_channel<T>(queries, shape.value_dim);
  Scratch apart = scratch;
  apart.logits = scratch.matrix;
  if (are_numbers(rotated.part->keys)) {
    score_in_place<kQueries, T, T>(of_rotated, rotated, behind, first, apart);
  } else {
    score_int8<kQueries, T>(of_rotated, rotated, behind, first, apart, packed);
  }
  score_int8<kQueries, T>(of_latents, latents, queries, first, scratch, packed);
  float bias[kQueries] = {};
  if (chunk.part->keys.means) score_mean<kQueries, T>(of_latents, chunk, queries, first, bias);
  join_logits<kQueries, T>(chunk, apart.logits, bias, scratch.logits);
}

// The whole chunk function, but for what finishes sums, where a chunk is of integers; false elsewhere.
template <class T>
inline bool attend_integers(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                            const Partial& out) {
  if (!are_integers<T>(shape, *chunk.part)) return false;
  const winnow_rows& keys = chunk.part->keys;
  const OneSide latents(chunk, keys), rotated(chunk, chunk.part->values);
  const PackedScratch packed = packed_scratch(shape, scratch.packed);
  prefetch_scales<T>(keys, chunk);
  prefetch_scales<T>(chunk.part->values, chunk);
  clear(shape, out);
  for_integer_blocks(shape.queries, [&](int64_t first, auto size) {
    constexpr int kQueries = decltype(size)::value;
    score_sides<kQueries, T>(shape, chunk, latents.chunk, rotated.chunk, queries, first, scratch, packed);
    Weights<kQueries> weights(shape, chunk, scratch.logits, first, out);
    if (const T* scales = slot_scales<T>(keys, chunk)) weights.scale_by(scales);
    weigh_int8<kQueries, T>(shape, latents.chunk, weights, packed, out.acc + first * shape.value_width);
    weights.finish();
  });
  return true;
}

}  // namespace
}  // namespace winnow
