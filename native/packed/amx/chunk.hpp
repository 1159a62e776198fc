// The chunk function of packed rows that few queries meet, as products in tiles. As without tiles, how logits are found
// depends on the keys only, how values are summed on the values only.
#pragma once

#include <type_traits>

#include "attend/contract.hpp"
#include "attend/partials.hpp"
#include "attend/queries.hpp"
#include "attend/weights.hpp"
#include "dense/amx/chunk.hpp"
#include "dense/amx/keys.hpp"
#include "dense/amx/values.hpp"
#include "matrix/amx/tiles.hpp"
#include "matrix/amx/token_sums.hpp"
#include "packed/amx/fitting.hpp"
#include "packed/amx/grouped_keys.hpp"
#include "packed/amx/grouped_values.hpp"
#include "packed/amx/keys.hpp"
#include "packed/amx/pruned_keys.hpp"
#include "packed/amx/values.hpp"
#include "packed/avx512/group_scales.hpp"
#include "packed/format.hpp"
#include "packed/keys.hpp"
#include "packed/queries.hpp"
#include "packed/scratch.hpp"
#include "packed/slot_scales.hpp"
#include "packed/values.hpp"
#include "simd/element.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// From this many queries on, tiles are faster than products in vectors, whose time grows with every query: of integers
// with a scale for each slot, and of those whose groups of channels have scales. What has to be expanded for tiles is worth
// it from so many tokens on; pruned keys then are, whatever the queries.
constexpr int64_t kFewestTileQueries = 3, kFewestGroupQueries = 6, kFewestExpandedTokens = 128;

inline bool tiles_gain(const Shape& shape, const Chunk& chunk, TileRows keys, TileRows values) {
  const bool enough = chunk.tokens >= kFewestExpandedTokens;
  if (keys == TileRows::kGroups || values == TileRows::kGroups) return enough && shape.queries >= kFewestGroupQueries;
  if (keys == TileRows::kNumbers) return shape.queries >= fewest_bf16_queries(shape);
  return shape.queries >= kFewestTileQueries || (enough && keys != TileRows::kIntegers);
}

// True where they do, and keys and values fill them.
template <class T>
bool packed_fits_tiles(const Shape& shape, const Chunk& chunk) {
  if (!chunk.part || chunk.tokens < kFewestTileTokens) return false;
  const TileRows keys = keys_in_tiles<T>(shape, chunk.part->keys), values = values_in_tiles<T>(shape, chunk.part->values);
  return keys != TileRows::kNone && values != TileRows::kNone && tiles_gain(shape, chunk, keys, values);
}

inline const uint8_t* first_row(const winnow_rows& rows, const Chunk& chunk) {
  return bytes_at(rows.data) + chunk.slot * rows.row_bytes;
}

inline const char* last_byte(const winnow_rows& rows, const Chunk& chunk) {
  return reinterpret_cast<const char*>(first_row(rows, chunk)) + chunk.tokens * rows.row_bytes - 1;
}

template <int kQueries, class T>
inline void score_integers(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                           const Scratch& scratch, const PackedScratch& packed) {
  const winnow_rows& rows = chunk.part->keys;
  const uint8_t* data = first_row(rows, chunk);
  const char* last = last_byte(rows, chunk);
  const int64_t dim = shape.key_dim;
  float bias[kQueries] = {};
  gather_for<kQueries, float, T>(shape, chunk, queries, first, scratch.query);
  if (rows.scaling == WINNOW_PER_SLOT) {
    const Tiles here(16, columns_of(kQueries));
    for_width(rows.bits, [&](auto width) {
      score_in_tiles<kQueries, decltype(width)::value>(true, scratch.query, dim, bias, data, chunk.tokens, last,
                                                       reinterpret_cast<int8_t*>(packed.tile), scratch.logits);
    });
    scale_by_slot<kQueries, T>(rows, chunk, scratch.logits);
  } else {
    const Tiles here;
    for_levels(rows.bits, [&](auto width) {
      constexpr int kBits = decltype(width)::value;
      if (rows.scaling == WINNOW_CHANNEL_GROUPS) {
        return score_groups_in_tiles<kQueries, kBits>(groups_of<T>(rows, chunk, dim), scratch.query, data, dim,
                                                      chunk.tokens, last, scratch.logits);
      }
      const int64_t channels = chunk.slot / kScaleGroup * dim;
      score_channels_in_tiles<kQueries, kBits>(static_cast<const T*>(rows.scales) + channels,
                                               static_cast<const T*>(rows.zeros) + channels, scratch.query, data, dim,
                                               chunk.tokens, last, scratch.logits);
    });
  }
  if (!rows.means) return;
  score_mean<kQueries, T>(shape, chunk, queries, first, bias);
  add_bias<kQueries>(bias, chunk.tokens, scratch.logits);
}

// Keys in bf16, of which a head may lack channels.
template <int kQueries>
inline void score_numbers(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                          const Scratch& scratch, const PackedScratch& packed) {
  const winnow_rows& rows = chunk.part->keys;
  const Tiles here(16, static_cast<uint16_t>(round_up(kQueries, 4)));
  Chunk numbers = chunk;
  numbers.keys = first_row(rows, chunk);
  numbers.values = first_row(chunk.part->values, chunk);
  if (!lacks_channels(rows)) {
    return score_in_tiles<kQueries>(shape, numbers, queries, first, scratch.logits);
  }
  const Asked asked = pick_channels<kQueries>(shape, chunk, queries, first, reinterpret_cast<Bf16*>(packed.queries));
  score_in_tiles<kQueries>(asked.shape, numbers, asked.queries, 0, scratch.logits);
}

template <int kQueries, class Kept>
inline void score_pruned_block(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                               const Scratch& scratch, const PackedScratch& packed) {
  const Tiles here(16, columns_of(kQueries));
  int8_t* halves = reinterpret_cast<int8_t*>(packed.tile);
  score_pruned_in_tiles<kQueries, Kept>(shape, chunk, queries, first, scratch.query, halves, scratch.logits);
}

template <int kQueries, class T>
inline void score_block_in_tiles(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                                 const Scratch& scratch, const PackedScratch& packed) {
  if constexpr (std::is_same_v<T, Bf16>) {
    switch (keys_in_tiles<T>(shape, chunk.part->keys)) {
      case TileRows::kNumbers:
        return score_numbers<kQueries>(shape, chunk, queries, first, scratch, packed);
      case TileRows::kPrunedNumbers:
        return score_pruned_block<kQueries, TilesOfNumbers>(shape, chunk, queries, first, scratch, packed);
      case TileRows::kPrunedIntegers:
        return score_pruned_block<kQueries, TilesOfIntegers>(shape, chunk, queries, first, scratch, packed);
      default: break;
    }
  }
  score_integers<kQueries, T>(shape, chunk, queries, first, scratch, packed);
}

template <int kQueries, class T>
inline void weigh_integers(const Shape& shape, const Chunk& chunk, Weights<kQueries>& weights, float* acc) {
  const winnow_rows& rows = chunk.part->values;
  const uint8_t* data = first_row(rows, chunk);
  const char* last = last_byte(rows, chunk);
  const int64_t dim = shape.value_dim;
  if (rows.scaling == WINNOW_PER_SLOT) {
    const Tiles here(2 * kQueries, 16, true);
    weights.scale_by(slot_scales<T>(rows, chunk));
    for_width(rows.bits, [&](auto width) {
      weigh_in_tiles<kQueries, decltype(width)::value>(true, weights, data, dim, chunk.tokens, last, acc,
                                                       shape.value_width);
    });
  } else {
    const Tiles here(2 * kQueries, 16);
    for_levels(rows.bits, [&](auto width) {
      weigh_groups_in_tiles<kQueries, decltype(width)::value>(groups_of<T>(rows, chunk, dim),
                                                              rows.scaling != WINNOW_GROUPED, weights, data, dim,
                                                              chunk.tokens, last, acc, shape.value_width);
    });
  }
  finish_sums<kQueries, T>(shape, chunk, acc);
}

// Values in bf16. Tiles go through long rows more than once, which one or two queries in vectors do not.
template <int kQueries>
inline void weigh_numbers(const Shape& shape, const Chunk& chunk, Weights<kQueries>& weights, float* acc) {
  if (kQueries <= 2 && shape.value_dim > kShortRow) return weigh_in_place<kQueries, Bf16>(shape, chunk, weights, acc);
  const Tiles here(2 * kQueries, 16, true);
  Chunk numbers = chunk;
  numbers.values = first_row(chunk.part->values, chunk);
  weigh_in_tiles<kQueries>(shape, numbers, weights, acc);
}

template <int kQueries, class T>
inline void weigh_block_in_tiles(const Shape& shape, const Chunk& chunk, Weights<kQueries>& weights, float* acc) {
  if constexpr (std::is_same_v<T, Bf16>) {
    if (chunk.part->values.bits == 16) return weigh_numbers<kQueries>(shape, chunk, weights, acc);
  }
  weigh_integers<kQueries, T>(shape, chunk, weights, acc);
}

template <class T>
void few_queries_in_tiles(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
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
