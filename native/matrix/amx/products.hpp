// Products in tiles of a block of tokens with a panel of queries.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "matrix/amx/sizes.hpp"
#include "matrix/amx/tiles.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Two tiles of rows and one or two of columns, whose products are added to tiles 0 to 3.
template <int kColumns>
inline void add_tiles(const uint32_t* upper, const uint32_t* lower, int64_t row_bytes, const uint32_t* left,
                      const uint32_t* right) {
  _tile_loadd(4, upper, row_bytes);
  _tile_loadd(6, left, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(5, lower, row_bytes);
  _tile_dpbf16ps(2, 5, 6);
  if constexpr (kColumns == 2) {
    _tile_loadd(7, right, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  }
}

// logits[t][q] = keys[t] · query[q] for a panel of kVectors vectors of queries, up to whole pairs of tiles of tokens. A
// term is a half of the keys and one of the queries.
template <int kVectors>
__attribute__((noinline)) void score_tiles(const TileScratch& tiles, int64_t key_words, int64_t vector, bool exact_keys,
                                           bool exact_queries, int64_t tokens, float* logits) {
  constexpr int64_t kLanes = kVectors * Vec::width;
  const int64_t blocks = key_words / kTilePairs;
  const uint32_t* queries = tiles.queries + vector * blocks * kTileWords;
  const auto add = [&](const uint32_t* keys, const uint32_t* columns) {
    for (int64_t block = 0; block < blocks; ++block) {
      const uint32_t* left = columns + block * kTileWords;
      const uint32_t* upper = keys + block * kTilePairs;
      add_tiles<kVectors>(upper, upper + 16 * key_words, 4 * key_words, left, left + blocks * kTileWords);
    }
  };
  finish_stores();
  for (int64_t t = 0; t < tokens; t += kTileChannels) {
    const uint32_t* keys = tiles.keys + t * key_words;
    zero_sums<4>();
    add(keys, queries);
    if (!exact_keys) add(keys + tiles.key_words, queries);
    if (!exact_queries) add(keys, queries + tiles.query_words);
    float* to = logits + t * kLanes;
    _tile_stored(0, to, 4 * kLanes);
    _tile_stored(2, to + 16 * kLanes, 4 * kLanes);
    if constexpr (kVectors == 2) {
      _tile_stored(1, to + 16, 4 * kLanes);
      _tile_stored(3, to + 16 * kLanes + 16, 4 * kLanes);
    }
  }
  finish_stores();
}

// sums[d][q] = factors[q]·sums[d][q] + sum over t of values[t][d]·weights[t][q] for a panel and all channels.
template <int kVectors>
__attribute__((noinline)) void weigh_tiles(const TileScratch& tiles, const float* factors, int64_t value_dim,
                                           bool exact_values, int64_t tokens, float* sums) {
  constexpr int64_t kLanes = kVectors * Vec::width, kRow = kBlockTokens / kTileChannels * kTileWords;
  const int64_t token_tiles = divide_up(tokens, kTileChannels), padded = round_up(value_dim, 16);
  for (int64_t d = 0; d < padded; ++d) {
    for (int64_t lane = 0; lane < kLanes; lane += Vec::width) {
      float* at = sums + d * kLanes + lane;
      store(at, load(factors + lane) * load(at));
    }
  }
  finish_stores();
  for (int64_t d = 0; d < padded; d += 32) {
    const bool both = d + 16 < padded;
    const uint32_t* upper = tiles.values + d / 16 * kRow;
    // Where channels end with the first tile of a pair, it stands for the second, too.
    const auto add = [&](const uint32_t* values, const uint32_t* weights) {
      const uint32_t* lower = both ? values + kRow : values;
      for (int64_t tile = 0; tile < token_tiles; ++tile) {
        const uint32_t* left = weights + tile * 2 * kTileWords;
        add_tiles<kVectors>(values + tile * kTileWords, lower + tile * kTileWords, 64, left, left + kTileWords);
      }
    };
    float *top = sums + d * kLanes, *bottom = both ? top + 16 * kLanes : top;
    _tile_loadd(0, top, 4 * kLanes);
    _tile_loadd(2, bottom, 4 * kLanes);
    if constexpr (kVectors == 2) {
      _tile_loadd(1, top + 16, 4 * kLanes);
      _tile_loadd(3, bottom + 16, 4 * kLanes);
    }
    add(upper, tiles.weights);
    add(upper, tiles.weights + tiles.weight_words);
    if (!exact_values) add(upper + tiles.value_words, tiles.weights);
    _tile_stored(2, bottom, 4 * kLanes);
    _tile_stored(0, top, 4 * kLanes);
    if constexpr (kVectors == 2) {
      _tile_stored(3, bottom + 16, 4 * kLanes);
      _tile_stored(1, top + 16, 4 * kLanes);
    }
  }
  finish_stores();
}

}  // namespace
}  // namespace winnow
