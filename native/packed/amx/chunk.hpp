// The chunk function of integers that few queries meet, as products in tiles of bytes.
#pragma once

#include "attend/contract.hpp"
#include "attend/partials.hpp"
#include "attend/queries.hpp"
#include "attend/weights.hpp"
#include "matrix/amx/tiles.hpp"
#include "matrix/amx/token_sums.hpp"
#include "packed/amx/keys.hpp"
#include "packed/amx/values.hpp"
#include "packed/avx512/int8_keys.hpp"
#include "packed/format.hpp"
#include "packed/keys.hpp"
#include "packed/queries.hpp"
#include "packed/scratch.hpp"
#include "packed/slot_scales.hpp"
#include "packed/values.hpp"

namespace winnow {
namespace {

// From this many queries on, tiles are faster than products in vectors, whose time grows with every query.
constexpr int64_t kFewestTileQueries = 3;

// True where they are: keys and values are integers in whole rows of tiles.
inline bool tiles_of_integers(const Shape& shape, const Chunk& chunk) {
  const auto fits = [](const winnow_rows& rows, int64_t dim) {
    return rows.bits != 16 && !rows.masks && !rows.channels && rows.kept == dim && dim % kRowNumbers == 0 &&
           dim <= kMostTileDim && rows.scaling == WINNOW_PER_SLOT;
  };
  return shape.queries >= kFewestTileQueries && chunk.tokens >= kFewestTileTokens && chunk.part &&
         fits(chunk.part->keys, shape.key_dim) && fits(chunk.part->values, shape.value_dim) &&
         sums_fit(chunk.part->keys, shape.key_dim);
}

template <int kQueries, class T>
inline void score_block_in_tiles(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                                 const Scratch& scratch, const PackedScratch& packed) {
  const winnow_rows& rows = chunk.part->keys;
  const Tiles here(16, columns_of(kQueries));
  const uint8_t* data = bytes_at(rows.data) + chunk.slot * rows.row_bytes;
  const char* last = reinterpret_cast<const char*>(data) + chunk.tokens * rows.row_bytes - 1;
  int8_t* halves = reinterpret_cast<int8_t*>(packed.tile);
  float bias[kQueries] = {};
  gather_for<kQueries, float, T>(shape, chunk, queries, first, scratch.query);
  for_width(rows.bits, [&](auto width) {
    score_in_tiles<kQueries, decltype(width)::value>(true, scratch.query, shape.key_dim, bias, data, chunk.tokens, last,
                                                     halves, scratch.logits);
  });
  scale_by_slot<kQueries, T>(rows, chunk, scratch.logits);
  if (!rows.means) return;
  score_mean<kQueries, T>(shape, chunk, queries, first, bias);
  add_bias<kQueries>(bias, chunk.tokens, scratch.logits);
}

template <int kQueries, class T>
inline void weigh_block_in_tiles(const Shape& shape, const Chunk& chunk, Weights<kQueries>& weights, float* acc) {
  const winnow_rows& rows = chunk.part->values;
  const Tiles here(2 * kQueries, 16, true);
  const uint8_t* data = bytes_at(rows.data) + chunk.slot * rows.row_bytes;
  const char* last = reinterpret_cast<const char*>(data) + chunk.tokens * rows.row_bytes - 1;
  weights.scale_by(slot_scales<T>(rows, chunk));
  for_width(rows.bits, [&](auto width) {
    weigh_in_tiles<kQueries, decltype(width)::value>(true, weights, data, shape.value_dim, chunk.tokens, last, acc,
                                                     shape.value_width);
  });
  finish_sums<kQueries, T>(shape, chunk, acc);
}

template <class T>
void integers_chunk(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                    const Partial& out) {
  clear(shape, out);
  const PackedScratch packed = packed_scratch(shape, scratch.packed);
  prefetch_scales<T>(chunk.part->keys, chunk);
  prefetch_scales<T>(chunk.part->values, chunk);
  for_tile_blocks(shape.queries, [&](int64_t first, auto size) {
    constexpr int kQueries = decltype(size)::value;
    score_block_in_tiles<kQueries, T>(shape, chunk, queries, first, scratch, packed);
    Weights<kQueries> weights(shape, chunk, scratch.logits, first, out);
    weigh_block_in_tiles<kQueries, T>(shape, chunk, weights, out.acc + first * shape.value_width);
    weights.finish();
  });
}

}  // namespace
}  // namespace winnow
