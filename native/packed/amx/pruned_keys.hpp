// Logits of keys that keep channels of their own, as products in tiles (see packed/avx512/pruned_keys.hpp for what is
// summed up). A row of a tile is a token: its kept entries with zeros between, and, as bytes, ±1 where a sign stands for
// what is gone. A column is a query, or one half of a query over the norms in int16.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "attend/contract.hpp"
#include "attend/queries.hpp"
#include "matrix/amx/query_tiles.hpp"
#include "matrix/amx/sizes.hpp"
#include "matrix/amx/tiles.hpp"
#include "matrix/amx/token_sums.hpp"
#include "packed/amx/keys.hpp"
#include "packed/amx/numbers.hpp"
#include "packed/avx512/int8_keys.hpp"
#include "packed/avx512/pruned_keys.hpp"
#include "packed/format.hpp"
#include "packed/masked_rows.hpp"
#include "packed/queries.hpp"
#include "packed/scratch.hpp"
#include "packed/unpack.hpp"
#include "simd/bits.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Sums of a pair of tiles of tokens: in the first two tiles those of kept entries, in the others those of signs.
using PrunedSums = TileSums<int32_t, 4>;

// Sixteen sums of products with halves of int16 -> as floats, lane t of dots[i]: token t, query 4·four + i.
inline void join_halves(const int32_t (*sums)[16], int four, Vec (&dots)[4]) {
  __m512i high[4], low[4];
  turn_sums(sums, 8 * four, high);
  turn_sums(sums, 8 * four + 4, low);
  unroll<4>([&](auto i) { dots[i] = {_mm512_cvtepi32_ps(join(high[i], low[i]))}; });
}

// Kept entries in bf16, which meet queries as they are.
struct TilesOfNumbers : ExpandedNumbers {
  // A block of queries, in columns.
  template <int kQueries>
  struct Columns {
    Bf16QueryTiles tiles;
    float scaling;

    void take(const Shape& shape, const Queries& queries, int64_t first, const float*, int8_t*) {
      scaling = shape.scaling;
      winnow::turn_queries<kQueries>(shape, queries, first, tiles.pairs[0][0]);
    }
    // Lane t of dots[i]: the sum of token t and query 4·four + i.
    void dots(const int32_t (*sums)[16], int four, Vec, Vec (&dots)[4]) const {
      __m512i turned[4];
      turn_sums(sums, 4 * four, turned);
      unroll<4>([&](auto i) { dots[i] = Vec{_mm512_castsi512_ps(turned[i])} * broadcast(scaling); });
    }
  };

  // Products of two tiles of tokens, in the tiles 0 and 1.
  template <int kQueries>
  static void multiply(const uint8_t* rows, int64_t dim, const Columns<kQueries>& queries) {
    for (int64_t block = 0; block < dim / kTileChannels; ++block) {
      const uint8_t* at = rows + block * kTileChannels * kBytes;
      _tile_loadd(6, queries.tiles.pairs[block], 64);
      _tile_loadd(4, at, dim * kBytes);
      _tile_loadd(5, at + 16 * dim * kBytes, dim * kBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 5, 6);
    }
  }
};

// Kept entries as integers with a scale for each slot, which meet halves of queries in int16.
struct TilesOfIntegers : ExpandedIntegers {
  template <int kQueries>
  struct Columns {
    QueryTiles tiles;
    Int16Queries<kQueries> int16;

    void take(const Shape& shape, const Queries&, int64_t, const float* block, int8_t* halves) {
      int16 = quantize_queries<kQueries>(block, shape.key_dim, halves);
      winnow::turn_queries<kQueries, 8>(int16, shape.key_dim, tiles);
    }
    void dots(const int32_t (*sums)[16], int four, Vec scale, Vec (&dots)[4]) const {
      join_halves(sums, four, dots);
      unroll<4>([&](auto i) { dots[i] = dots[i] * (scale * broadcast(int16.scale[4 * four + i])); });
    }
  };

  template <int kQueries>
  static void multiply(const uint8_t* rows, int64_t dim, const Columns<kQueries>& queries) {
    for (int64_t block = 0; block < dim / kRowNumbers; ++block) {
      const uint8_t* at = rows + block * kRowNumbers;
      _tile_loadd(6, queries.tiles.bytes[block], 64);
      _tile_loadd(4, at, dim);
      _tile_loadd(5, at + 16 * dim, dim);
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 5, 6);
    }
  }
};

static_assert(kExpandedKeys == kPairTokens && kMostExpandedDim == kMostTileDim, "expanded keys are two tiles");

// Products of the signs of two tiles of tokens with halves of queries, in the tiles 2 and 3.
inline void multiply_signs(const uint8_t* signs, int64_t dim, const QueryTiles& queries) {
  for (int64_t block = 0; block < dim / kRowNumbers; ++block) {
    const uint8_t* at = signs + block * kRowNumbers;
    _tile_loadd(7, queries.bytes[block], 64);
    _tile_loadd(4, at, dim);
    _tile_loadd(5, at + 16 * dim, dim);
    _tile_dpbssd(2, 4, 7);
    _tile_dpbssd(3, 5, 7);
  }
}

// A block of queries as they meet kept entries, and over the norms, as they meet signs.
template <int kQueries, class Kept>
struct PrunedTileQueries {
  typename Kept::template Columns<kQueries> kept;
  Int16Queries<kQueries> over_norms;
  QueryTiles signs;
};

template <int kQueries, class Kept>
inline void take_pruned_queries(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                                float* block, int8_t* halves, PrunedTileQueries<kQueries, Kept>& result) {
  const winnow_rows& rows = chunk.part->keys;
  const int64_t dim = shape.key_dim;
  gather_queries<kQueries, float, Bf16>(shape, queries, first, block);
  result.kept.take(shape, queries, first, block, halves);
  if (rows.inverse_norms) scale_channels<kQueries>(rows.inverse_norms + chunk.head * dim, dim, block);
  result.over_norms = quantize_queries<kQueries>(block, dim, halves);
  turn_queries<kQueries, 8>(result.over_norms, dim, result.signs);
}

// logits[q][t] of a pair of tiles, of which there are `count` tokens from `slot` on.
template <int kQueries, class Kept>
inline void give_pruned_logits(const PrunedSums& sums, const PrunedTileQueries<kQueries, Kept>& queries,
                               const winnow_rows& rows, int64_t slot, int64_t count, float* logits) {
  const Bf16 *scales = static_cast<const Bf16*>(rows.scales), *stats = static_cast<const Bf16*>(rows.stats);
  const bool constant = rows.recovery == WINNOW_CONSTANT;
  for (int64_t t = 0; t < count; t += Vec::width) {
    const Vec statistic = constant ? broadcast(rows.fill) : load_up_to(stats + slot + t, count - t);
    const Vec scale = scales ? load_up_to(scales + slot + t, count - t) : broadcast(1.0f);
    const int tile = static_cast<int>(t / Vec::width);
    for (int four = 0; four < fours_of(kQueries); ++four) {
      Vec kept[4], gone[4];
      queries.kept.dots(sums.sums[tile], four, scale, kept);
      join_halves(sums.sums[2 + tile], four, gone);
      unroll<4>([&](auto i) {
        const int q = 4 * four + i;
        if (q >= kQueries) return;
        store(logits + q * kLogitStride + t, fma(gone[i], statistic * broadcast(queries.over_norms.scale[q]), kept[i]));
      });
    }
  }
}

// logits[q][t] for all tokens of a chunk, with tiles of 16 rows and columns_of(kQueries) columns; writes up to a pair of
// tiles past the last token.
template <int kQueries, class Kept>
inline void score_pruned_in_tiles(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                                  float* block, int8_t* halves, float* logits) {
  const winnow_rows& rows = chunk.part->keys;
  const int64_t dim = shape.key_dim;
  PrunedTileQueries<kQueries, Kept> turned;
  take_pruned_queries<kQueries, Kept>(shape, chunk, queries, first, block, halves, turned);
  MaskedRows reader(rows, chunk.part->slots, chunk.slot, dim, sizeof(Bf16));
  ExpandedKeys<Kept> keys[2];
  PrunedSums sums;
  const auto take = [&](int64_t t) {
    const int64_t count = least(kPairTokens, chunk.tokens - t);
    for_blocks(dim, [&](auto blocks) {
      expand_keys<Kept, decltype(blocks)::value>(rows, count, reader, keys[t / kPairTokens % 2]);
    });
  };
  take(0);
  for (int64_t t = 0; t < chunk.tokens; t += kPairTokens) {
    const int64_t count = least(kPairTokens, chunk.tokens - t);
    const ExpandedKeys<Kept>& here = keys[t / kPairTokens % 2];
    finish_stores();
    zero_sums<4>();
    Kept::multiply(here.kept, dim, turned.kept);
    multiply_signs(here.signs, dim, turned.signs);
    // Products take long: meanwhile the next tokens are expanded.
    if (t + kPairTokens < chunk.tokens) take(t + kPairTokens);
    store_sums(sums);
    give_pruned_logits<kQueries, Kept>(sums, turned, rows, chunk.slot + t, count, logits + t);
  }
}

}  // namespace
}  // namespace winnow
