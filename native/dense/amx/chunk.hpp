// The chunk function of dense slots in bf16 that few queries meet, as products in tiles.
#pragma once

#include "attend/contract.hpp"
#include "attend/partials.hpp"
#include "attend/weights.hpp"
#include "dense/amx/keys.hpp"
#include "dense/amx/values.hpp"
#include "matrix/amx/sizes.hpp"
#include "matrix/amx/tiles.hpp"
#include "matrix/amx/token_sums.hpp"

namespace winnow {
namespace {

// From this many queries on, tiles are faster than products in vectors, whose time grows with every query; sums over
// the lanes of vectors take the more of it, the shorter rows are.
constexpr int64_t kShortRow = 64, kFewestBf16Queries = 5, kFewestOfShortRows = 3;

constexpr int64_t fewest_bf16_queries(const Shape& shape) {
  return shape.key_dim <= kShortRow && shape.value_dim <= kShortRow ? kFewestOfShortRows : kFewestBf16Queries;
}

// True where they are, and rows fill tiles.
inline bool tiles_of_bf16(const Shape& shape, const Chunk& chunk) {
  return !chunk.part && shape.queries >= fewest_bf16_queries(shape) && chunk.tokens >= kFewestTileTokens &&
         shape.key_dim % kTileChannels == 0 && shape.key_dim <= kMostTileDim &&
         shape.value_dim % kSummedChannels == 0;
}

// Calls body(first, Count<size>) for blocks that cover n queries, as for_tile_blocks does, but 5 and 6 have blocks of their
// own, with fewer weights to be made.
template <class Body>
inline void for_column_blocks(int64_t n, const Body& body) {
  for (int64_t first = 0; first < n; first += kMostTileQueries) {
    const int64_t rest = least(kMostTileQueries, n - first);
    switch (rest) {
      case 5: body(first, Count<5>{}); break;
      case 6: body(first, Count<6>{}); break;
      default: for_tile_blocks(rest, [&](int64_t, auto size) { body(first, size); });
    }
  }
}

inline void bf16_chunk(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                       const Partial& out) {
  clear(shape, out);
  for_column_blocks(shape.queries, [&](int64_t first, auto size) {
    constexpr int kQueries = decltype(size)::value;
    {
      const Tiles here(16, static_cast<uint16_t>(round_up(kQueries, 4)));
      score_in_tiles<kQueries>(shape, chunk, queries, first, scratch.logits);
    }
    Weights<kQueries> weights(shape, chunk, scratch.logits, first, out);
    const Tiles here(2 * kQueries, 16, true);
    weigh_in_tiles<kQueries>(shape, chunk, weights, out.acc + first * shape.value_width);
    weights.finish();
  });
}

}  // namespace
}  // namespace winnow
