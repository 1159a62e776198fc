// Logits of dense keys in bf16 as products in tiles. A row of a tile is a token where it lies, a column a query.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "attend/contract.hpp"
#include "matrix/amx/query_tiles.hpp"
#include "matrix/amx/sizes.hpp"
#include "matrix/amx/tiles.hpp"
#include "matrix/amx/token_sums.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Products of two tiles of keys with the queries, in the tiles 0 and 1; asks for half as many bytes from `ahead` on,
// since prefetching waits where it is asked for too much at once.
inline void multiply_keys(const Bf16* keys, int64_t dim, const char* ahead, const Bf16QueryTiles& queries) {
  const int64_t bytes = dim * static_cast<int64_t>(sizeof(Bf16));
  finish_stores();
  zero_sums<2>();
  for (int64_t block = 0; block < dim / kTileChannels; ++block, ahead += kPairTokens / 2 * kLine) {
    const Bf16* at = keys + block * kTileChannels;
    _tile_loadd(6, queries.pairs[block], 64);
    _tile_loadd(4, at, bytes);
    _tile_loadd(5, at + 16 * dim, bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
    unroll<kPairTokens / 2>([&](auto line) { prefetch_busy(ahead + line * kLine); });
  }
}

// logits[q][t] of a pair of tiles. Asks for so many lines from `ahead` on, meanwhile.
template <int kQueries>
inline void give_logits(const TokenSums& tokens, float scaling, const char* ahead, int64_t lines, float* logits) {
  constexpr int64_t kSteps = kPairTokens / Vec::width * divide_up(kQueries, 4);
  for (int64_t t = 0; t < kPairTokens; t += Vec::width) {
    for (int four = 0; four < kQueries; four += 4, ahead += lines / kSteps * kLine) {
      for (int64_t line = 0; line < lines / kSteps; ++line) prefetch_busy(ahead + line * kLine);
      __m512i turned[4];
      turn_sums(tokens.sums[t / Vec::width], four, turned);
      unroll<4>([&](auto i) {
        if (four + i >= kQueries) return;
        store(logits + (four + i) * kLogitStride + t, Vec{_mm512_castsi512_ps(turned[i])} * broadcast(scaling));
      });
    }
  }
}

// logits[q][t] for all tokens of a chunk, with tiles of 16 rows and as many columns as queries; writes up to a pair of
// tiles past the last token.
template <int kQueries>
inline void score_in_tiles(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                           float* logits) {
  const int64_t dim = shape.key_dim;
  const Bf16* keys = static_cast<const Bf16*>(chunk.keys);
  const Bf16* end = keys + chunk.tokens * dim;
  Bf16QueryTiles tiles;
  turn_queries<kQueries>(shape, queries, first, tiles.pairs[0][0]);
  TokenSums sums;
  const int64_t asked = kPairTokens / 2 * dim / kTileChannels;  // lines, half of those of a pair of tiles
  for (int64_t t = 0; t < chunk.tokens; t += kPairTokens) {
    const Bf16* from = keys + t * dim;
    const char* ahead = ahead_of(from, end, chunk.values);
    // Nothing is read past the end: the last rows are copied. Nobody uses the logits of what lies behind.
    alignas(64) Bf16 edge[kPairTokens * kMostTileDim];
    if (chunk.tokens - t < kPairTokens) {
      const size_t used = static_cast<size_t>((chunk.tokens - t) * dim) * sizeof(Bf16);
      std::memset(edge, 0, sizeof edge);
      from = static_cast<const Bf16*>(std::memcpy(edge, from, used));
    }
    multiply_keys(from, dim, ahead, tiles);
    store_sums(sums);
    give_logits<kQueries>(sums, shape.scaling, ahead + asked * kLine, asked, logits + t);
  }
}

}  // namespace
}  // namespace winnow
