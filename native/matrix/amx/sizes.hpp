// A thread's own memory for products in tiles, beside that for products of matrices in vectors.
#pragma once

#include <cstdint>

#include "attend/contract.hpp"
#include "matrix/sizes.hpp"
#include "sizes.hpp"

namespace winnow {

// A tile is 16 rows of 16 pairs of bf16, or of 16 floats.
constexpr int64_t kTileWords = 256;
constexpr int64_t kTilePairs = 16;
constexpr int64_t kTileChannels = 32;  // of keys and queries, whose pairs are channels

// Tokens of a block: those of a tile of values or weights, whose pairs they are, and of two of keys. All that a panel of
// queries needs of a block then stays in the first-level cache, which is worth more than longer sums in tiles.
constexpr int64_t kTileTokens = 32;

// The pieces of Scratch::tiles, in words of two bf16 or one float. Numbers that bf16 does not hold are the sum of two:
// the second half of every piece but the sums has the rest.
struct TileScratch {
  uint32_t* keys;     // [2, kTileTokens, padded D / 2]
  uint32_t* values;   // [2, padded Dv / 16] tiles
  uint32_t* queries;  // [2, padded queries / 16, padded D / 32] tiles
  float* sums;        // [padded queries / kPanelQueries, padded Dv, kPanelQueries]
  int64_t key_words, value_words, query_words;  // of the first half of each
};

namespace {

constexpr int64_t padded_keys(const Shape& shape) { return round_up(shape.key_dim, kTileChannels); }
constexpr int64_t padded_values(const Shape& shape) { return round_up(shape.value_dim, 16); }

inline TileScratch tile_scratch(const Shape& shape, uint32_t* memory) {
  TileScratch pieces;
  pieces.key_words = kTileTokens * padded_keys(shape) / 2;
  pieces.value_words = kTileTokens * padded_values(shape) / 2;
  pieces.query_words = padded_queries(shape) * padded_keys(shape) / 2;
  pieces.keys = memory;
  pieces.values = pieces.keys + 2 * pieces.key_words;
  pieces.queries = pieces.values + 2 * pieces.value_words;
  pieces.sums = reinterpret_cast<float*>(pieces.queries + 2 * pieces.query_words);
  return pieces;
}

constexpr int64_t tile_words(const Shape& shape) {
  return kTileTokens * (padded_keys(shape) + padded_values(shape)) +
         padded_queries(shape) * (padded_keys(shape) + padded_values(shape));
}

}  // namespace
}  // namespace winnow
