// Logits of a chunk of packed keys.
#pragma once

#include <type_traits>

#include "attend/contract.hpp"
#include "attend/queries.hpp"
#include "dense/pairs.hpp"
#include "dense/scores.hpp"
#include "packed/byte_rows.hpp"
#include "packed/dots.hpp"
#include "packed/format.hpp"
#include "packed/queries.hpp"
#include "packed/rows.hpp"
#include "packed/scratch.hpp"
#include "packed/slot_scales.hpp"
#include "simd/element.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Keys that are read where they lie, of type Key.
template <int kQueries, class Key, class T>
inline void score_in_place(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                           const Scratch& scratch) {
  const winnow_rows& rows = chunk.part->keys;
  Chunk numbers = chunk;
  numbers.keys = static_cast<const Key*>(rows.data) + chunk.slot * shape.key_dim;
  numbers.values = numbers.keys;
  if constexpr (std::is_same_v<Key, T>) {
    if (meet_as_they_are(rows) && score_numbers<kQueries, T>(shape, numbers, queries, first, scratch)) return;
  }
  gather_for<kQueries, Key, T>(shape, chunk, queries, first, scratch.query);
  score<kQueries, Key>(shape, numbers, scratch.query, scratch.edge, scratch.logits);
}

// logits[q][t] += bias[q] for the tokens of a tile and up to the next whole vector
template <int kQueries>
inline void add_bias(const float (&bias)[kQueries], int64_t tokens, float* logits) {
  for (int64_t t = 0; t < tokens; t += Vec::width) {
    unroll<kQueries>([&](auto q) {
      float* at = logits + q * kLogitStride + t;
      store(at, load(at) + broadcast(bias[q]));
    });
  }
}

static_assert(kTileRows == kScaleGroup, "a tile of grouped keys has one set of scales");

// Keys from a token on, unpacked by `reader` a tile at a time; tiles are scale groups where slots share scales.
template <int kQueries, class T, class Reader>
inline void score_tiles(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first, int64_t token,
                        const Scratch& scratch, const PackedScratch& packed, Reader reader) {
  using Number = typename Reader::Number;
  const winnow_rows& rows = chunk.part->keys;
  Number* numbers = reinterpret_cast<Number*>(packed.tile);
  gather_for<kQueries, Number, T>(shape, chunk, queries, first, scratch.query);
  for (int64_t t = token; t < chunk.tokens; t += kTileRows) {
    Chunk tile = chunk;
    tile.keys = tile.values = numbers;
    tile.tokens = least(kTileRows, chunk.tokens - t);
    reader.unpack(tile.tokens, numbers);
    if (rows.scaling != WINNOW_GROUPED) {
      score<kQueries, Number, false>(shape, tile, scratch.query, scratch.edge, scratch.logits + t);
      continue;
    }
    float bias[kQueries];
    fold_scales<kQueries, T>(shape, rows, chunk.slot + t, scratch.query, packed.queries, bias);
    score<kQueries, Number, false>(shape, tile, packed.queries, scratch.edge, scratch.logits + t);
    add_bias<kQueries>(bias, tile.tokens, scratch.logits + t);
  }
}

// Any other keys from a token on.
template <int kQueries, class T>
inline void score_unpacked(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                           int64_t token, const Scratch& scratch, const PackedScratch& packed) {
  if (token == chunk.tokens) return;
  const winnow_rows& rows = chunk.part->keys;
  const auto score_by = [&](const auto& reader) {
    score_tiles<kQueries, T>(shape, chunk, queries, first, token, scratch, packed, reader);
  };
  if (are_bytes(rows, shape.key_dim)) return score_by(ByteReader(rows, chunk.slot + token, shape.key_dim));
  score_by(RowReader<T>(rows, *chunk.part, chunk.head, chunk.slot + token, shape.key_dim, false, packed.reader,
                        packed.row_floats));
}

// scratch.logits[q][t] for the queries [first, first + kQueries) and all tokens of the chunk.
template <int kQueries, class T>
inline void score_packed(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                         const Scratch& scratch, const PackedScratch& packed) {
  const winnow_rows& rows = chunk.part->keys;
  Asked asked{shape, queries};
  if (lacks_channels(rows)) {
    asked = pick_channels<kQueries>(shape, chunk, queries, first, reinterpret_cast<T*>(packed.queries));
    first = 0;
  }
  const auto& [kept, from] = asked;
  if (score_int8<kQueries, T>(kept, chunk, from, first, scratch, packed) ||
      score_in_lanes<kQueries, T>(kept, chunk, from, first, scratch, packed)) {
    // Done.
  } else if (are_numbers(rows)) {
    score_in_place<kQueries, T, T>(kept, chunk, from, first, scratch);
  } else if (!rows.masks && rows.bits == 8 && rows.scaling == WINNOW_PER_SLOT) {
    score_in_place<kQueries, Int8, T>(kept, chunk, from, first, scratch);
  } else {
    const int64_t scored = score_pruned<kQueries, T>(kept, chunk, from, first, packed, scratch.logits);
    score_unpacked<kQueries, T>(kept, chunk, from, first, scored, scratch, packed);
  }
  scale_by_slot<kQueries, T>(rows, chunk, scratch.logits);
  if (!rows.means) return;
  float bias[kQueries];
  score_mean<kQueries, T>(shape, chunk, queries, first, bias);
  add_bias<kQueries>(bias, chunk.tokens, scratch.logits);
}

}  // namespace
}  // namespace winnow
