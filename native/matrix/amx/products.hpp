// Products in tiles of a block of tokens with a panel of queries.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "matrix/amx/sizes.hpp"
#include "matrix/amx/tiles.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// One or two tiles of columns, 6 and 7, whose products with the tiles 4 and 5 are added to tiles 0 to 3. All are loaded
// before the first product.
template <int kColumns>
__attribute__((always_inline)) inline void load_columns(const void* left, const void* right, int64_t column_bytes) {
  _tile_loadd(6, left, column_bytes);
  if constexpr (kColumns == 2) _tile_loadd(7, right, column_bytes);
}
template <int kColumns>
__attribute__((always_inline)) inline void add_products() {
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kColumns == 2) _tile_dpbf16ps(1, 4, 7);
  _tile_dpbf16ps(2, 5, 6);
  if constexpr (kColumns == 2) _tile_dpbf16ps(3, 5, 7);
}

template <int kColumns>
__attribute__((always_inline)) inline void add_columns(const void* left, const void* right, int64_t column_bytes) {
  load_columns<kColumns>(left, right, column_bytes);
  add_products<kColumns>();
}

// The same of two tiles of rows, which stay in tiles 4 and 5.
template <int kColumns>
__attribute__((always_inline)) inline void add_tiles(const uint32_t* upper, const uint32_t* lower, int64_t row_bytes,
                                                     const void* left, const void* right, int64_t column_bytes) {
  _tile_loadd(4, upper, row_bytes);
  load_columns<kColumns>(left, right, column_bytes);
  _tile_loadd(5, lower, row_bytes);
  add_products<kColumns>();
}

// Two rows of one or two tiles of sums, a panel of kVectors vectors wide, from memory and back. Where both are the same,
// the first is what stays.
template <int kVectors>
__attribute__((always_inline)) inline void load_panel(const float* top, const float* bottom) {
  constexpr int64_t kBytes = kVectors * 64;
  _tile_loadd(0, top, kBytes);
  _tile_loadd(2, bottom, kBytes);
  if constexpr (kVectors == 2) {
    _tile_loadd(1, top + 16, kBytes);
    _tile_loadd(3, bottom + 16, kBytes);
  }
}
template <int kVectors>
__attribute__((always_inline)) inline void store_panel(float* top, float* bottom) {
  constexpr int64_t kBytes = kVectors * 64;
  _tile_stored(2, bottom, kBytes);
  _tile_stored(0, top, kBytes);
  if constexpr (kVectors == 2) {
    _tile_stored(3, bottom + 16, kBytes);
    _tile_stored(1, top + 16, kBytes);
  }
  finish_stores();
}

// Rows of keys as tiles read them: `words` pairs of channels each, and what bf16 does not hold of them, or null.
struct KeyRows {
  const uint32_t* rows;
  const uint32_t* rest;
  int64_t words;
};

// Queries of a panel as tiles, a block of channels after another; `next` words from those of a vector of queries to those
// of the next one, and what bf16 does not hold of them `rest` words behind, or at none.
struct QueryColumns {
  const uint32_t* tiles;
  int64_t next;
  int64_t rest;
};

// logits[t][q] = keys[t] · query[q] of a block of tokens and a panel of kVectors vectors of queries. A term is a half of
// the keys and one of the queries.
template <int kVectors>
__attribute__((noinline)) void score_tiles(const KeyRows& keys, const QueryColumns& queries, float* logits) {
  constexpr int64_t kLanes = kVectors * Vec::width;
  const auto add = [&](const uint32_t* rows, const uint32_t* columns) {
    for (int64_t block = 0; block < keys.words / kTilePairs; ++block) {
      const uint32_t* left = columns + block * kTileWords;
      const uint32_t* upper = rows + block * kTilePairs;
      add_tiles<kVectors>(upper, upper + 16 * keys.words, 4 * keys.words, left, left + queries.next, 64);
    }
  };
  finish_stores();
  zero_sums<4>();
  add(keys.rows, queries.tiles);
  if (keys.rest) add(keys.rest, queries.tiles);
  if (queries.rest) add(keys.rows, queries.tiles + queries.rest);
  if (keys.rest && queries.rest) add(keys.rest, queries.tiles + queries.rest);
  store_panel<kVectors>(logits, logits + 16 * kLanes);
}

// sums[d][q] *= factors[q].
template <int kVectors>
inline void scale_sums(const float* factors, int64_t channels, float* sums) {
  constexpr int64_t kLanes = kVectors * Vec::width;
  for (int64_t d = 0; d < channels; ++d) {
    unroll<kVectors>([&](auto v) {
      float* at = sums + d * kLanes + v * Vec::width;
      store(at, load(factors + v * Vec::width) * load(at));
    });
  }
}

// sums[d][q] += sum over t of values[t][d]·weights[t][q] of a block of tokens, for a panel and all channels. Weights are
// where softmax leaves them; both halves meet a tile of values while it is there.
template <int kVectors>
__attribute__((noinline)) void weigh_tiles(const TileScratch& tiles, const float* weights, int64_t value_dim,
                                           bool exact_values, float* sums) {
  constexpr int64_t kLanes = kVectors * Vec::width, kPairBytes = 2 * kLanes * static_cast<int64_t>(sizeof(float));
  const int64_t padded = round_up(value_dim, 16);
  const float *first = weights, *rest = weights + kLanes;
  finish_stores();
  for (int64_t d = 0; d < padded; d += 32) {
    // Where channels end with the first tile of a pair, it stands for the second, too.
    const bool both = d + 16 < padded;
    const uint32_t *upper = tiles.values + d * kTilePairs, *lower = both ? upper + kTileWords : upper;
    float *top = sums + d * kLanes, *bottom = both ? top + 16 * kLanes : top;
    load_panel<kVectors>(top, bottom);
    add_tiles<kVectors>(upper, lower, 64, first, first + Vec::width, kPairBytes);
    add_columns<kVectors>(rest, rest + Vec::width, kPairBytes);
    if (!exact_values) {
      add_tiles<kVectors>(upper + tiles.value_words, lower + tiles.value_words, 64, first, first + Vec::width, kPairBytes);
      add_columns<kVectors>(rest, rest + Vec::width, kPairBytes);
    }
    store_panel<kVectors>(top, bottom);
  }
}

}  // namespace
}  // namespace winnow
