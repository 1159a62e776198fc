// The chunk function of dense slots in bf16 that few queries meet, as products in tiles.
#pragma once

#include "attend/contract.hpp"
#include "attend/partials.hpp"
#include "attend/softmax.hpp"
#include "dense/amx/keys.hpp"
#include "dense/amx/values.hpp"
#include "matrix/amx/tiles.hpp"
#include "matrix/amx/token_sums.hpp"

namespace winnow {
namespace {

// From this many queries on, tiles are faster than products in vectors, whose time grows with every query.
constexpr int64_t kFewestBf16Queries = 5;

// True where they are, and rows fill tiles.
inline bool tiles_of_bf16(const Shape& shape, const Chunk& chunk) {
  return !chunk.part && shape.queries >= kFewestBf16Queries && chunk.tokens >= kFewestTileTokens &&
         shape.key_dim % kRowChannels == 0 && shape.key_dim <= kMostTileDim &&
         shape.value_dim % kSummedChannels == 0;
}

inline void bf16_chunk(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                       const Partial& out) {
  clear(shape, out);
  const Bf16* values = static_cast<const Bf16*>(chunk.values);
  const Bf16* last = values + chunk.tokens * shape.value_dim - 1;
  for_tile_blocks(shape.queries, [&](int64_t first, auto size) {
    constexpr int kQueries = decltype(size)::value;
    {
      const Tiles here(16, static_cast<uint16_t>(round_up(kQueries, 4)));
      score_in_tiles<kQueries>(shape, chunk, queries, first, scratch.logits);
    }
    softmax_block<kQueries>(shape, chunk, scratch.logits, first, values, last, out);
    const Tiles here(2 * kQueries, 16, true);
    weigh_in_tiles<kQueries>(shape, chunk, scratch.logits, out.acc + first * shape.value_width);
  });
}

}  // namespace
}  // namespace winnow
