// Chunk functions for many queries in 16 bits, as products in tiles of bf16. What bf16 does not hold of a number is
// multiplied beside it, so that products are finer than what they are made of.
#pragma once

#include <cstring>
#include <type_traits>

#include "attend/contract.hpp"
#include "attend/partials.hpp"
#include "matrix/amx/held_rows.hpp"
#include "matrix/amx/next_rows.hpp"
#include "matrix/amx/operands.hpp"
#include "matrix/amx/products.hpp"
#include "matrix/amx/query_tiles.hpp"
#include "matrix/amx/sizes.hpp"
#include "matrix/amx/weights.hpp"
#include "matrix/queries.hpp"
#include "matrix/rows.hpp"
#include "matrix/sizes.hpp"
#include "packed/queries.hpp"
#include "packed/values.hpp"
#include "simd/element.hpp"

namespace winnow {
namespace {

// Keys or values of a chunk: as bf16 where that holds them and tiles can be made of them, else as fp32.
template <class T, class Reader>
struct TileSource {
  HeldRows<T> held;
  Reader reader;
  bool exact;  // what is read as fp32

  int64_t dim() const { return reader.dim(); }
};

// True where bf16 holds what is read as fp32.
template <class T>
bool reads_exactly(const winnow_rows& rows) {
  return !rows.masks && (rows.bits == 16 ? std::is_same_v<T, Bf16> : rows.scaling == WINNOW_PER_SLOT);
}

// A block of tokens as tiles.
struct TileBlock {
  KeyRows keys;
  bool exact_values;
  bool scaled;  // by scales of tokens
  int64_t tokens;
};

// Logits are exponents of two.
inline float log2_scaling(const Shape& shape) { return shape.scaling * kLog2E; }

template <class T, class Reader>
inline KeyRows read_keys(const Shape& shape, const MatrixScratch& matrix, const TileScratch& tiles, int64_t count,
                         TileSource<T, Reader>& keys) {
  if (keys.held.any()) {
    const int64_t padding = kTileTokens - count;
    const Bf16* held = keys.held.next(count, padding, reinterpret_cast<Bf16*>(tiles.keys), matrix.key_scales);
    return {reinterpret_cast<const uint32_t*>(held), nullptr, keys.held.dim() / 2};
  }
  keys.reader.read(count, matrix.keys, matrix.key_scales);
  take_keys(shape, matrix.keys, keys.dim(), count, keys.exact, tiles);
  return {tiles.keys, keys.exact ? nullptr : tiles.keys + tiles.key_words, padded_keys(shape) / 2};
}

template <class T, class Reader>
inline void read_values(const Shape& shape, const MatrixScratch& matrix, const TileScratch& tiles, int64_t count,
                        TileSource<T, Reader>& values) {
  if (values.held.any()) {
    const Bf16* held = values.held.next(count, 0, reinterpret_cast<Bf16*>(matrix.values), matrix.value_scales);
    return take_values<Reader::kInPairs>(held, shape.value_dim, count, tiles);
  }
  values.reader.read(count, matrix.values, matrix.value_scales);
  take_values(matrix.values, shape.value_dim, count, values.exact, tiles);
}

template <class Keys, class Values>
inline TileBlock read_tiles(const Shape& shape, const MatrixScratch& matrix, const TileScratch& tiles, int64_t count,
                            Keys& keys, Values& values) {
  const bool scaled = keys.held.scaled() || values.held.scaled();
  const KeyRows rows = read_keys(shape, matrix, tiles, count, keys);
  read_values(shape, matrix, tiles, count, values);
  for (int64_t t = 0; scaled && t < count; t += Vec::width) {
    store(matrix.key_scales + t, broadcast(log2_scaling(shape)) * load(matrix.key_scales + t));
  }
  return {rows, values.held.any() || values.exact, scaled, count};
}

// A block of tokens and a panel of kVectors vectors of queries.
template <int kVectors>
inline void attend_tiles(const Shape& shape, const MatrixScratch& matrix, const TileScratch& tiles,
                         const TileBlock& block, bool exact_queries, int64_t first, NextRows& next, const Partial& out) {
  constexpr int64_t kLanes = kVectors * Vec::width;
  const int64_t vector_words = padded_keys(shape) / kTileChannels * kTileWords;
  const QueryColumns queries{tiles.queries + first / Vec::width * vector_words, vector_words,
                             exact_queries ? 0 : tiles.query_words};
  score_tiles<kVectors>(block.keys, queries, matrix.logits);
  bool changed = false;
  for (int64_t v = 0; v < kVectors; ++v) {
    const int64_t lane = v * Vec::width;
    const LogitColumn column{matrix.logits + lane, kLanes, block.tokens};
    const LaneStatistics statistics{out.max + first + lane, out.sum + first + lane, matrix.factors + lane};
    const Vec bias = broadcast(kLog2E) * load(matrix.biases + first + lane);
    if (block.scaled) {
      const EachToken scales{matrix.key_scales, matrix.value_scales};
      changed |= softmax_column(shape.softcap, scales, bias, column, statistics, next);
    } else {
      const AllTokens scales{broadcast(log2_scaling(shape))};
      changed |= softmax_column(shape.softcap, scales, bias, column, statistics, next);
    }
  }
  float* sums = tiles.sums + first * padded_values(shape);
  if (changed) scale_sums<kVectors>(matrix.factors, padded_values(shape), sums);
  weigh_tiles<kVectors>(tiles, matrix.logits, shape.value_dim, block.exact_values, sums);
}

// A chunk whose queries are tiles.
template <class Keys, class Values>
inline void attend_blocks_in_tiles(const Shape& shape, const MatrixScratch& matrix, const TileScratch& tiles,
                                   bool exact_queries, int64_t tokens, Keys& keys, Values& values, const Partial& out) {
  const Tiles here;
  clear(shape, out);
  std::memset(tiles.sums, 0, static_cast<size_t>(padded_queries(shape) * padded_values(shape)) * sizeof(float));
  for (int64_t t = 0; t < tokens; t += kTileTokens) {
    const TileBlock block = read_tiles(shape, matrix, tiles, least(kTileTokens, tokens - t), keys, values);
    const int64_t to_come = least(kTileTokens, tokens - t - block.tokens);
    NextRows next(keys.held.to_come(to_come), values.held.to_come(to_come),
                  divide_up(shape.queries, Vec::width) * kTileTokens / 2);
    for_panels(shape, [&](int64_t first, auto vectors) {
      attend_tiles<decltype(vectors)::value>(shape, matrix, tiles, block, exact_queries, first, next, out);
    });
  }
  for (int64_t first = 0; first < shape.queries; first += Vec::width) {
    store(out.max + first, broadcast(kLn2) * load(out.max + first));
  }
  for_panels(shape, [&](int64_t first, auto vectors) {
    constexpr int64_t kLanes = decltype(vectors)::value * Vec::width;
    give_sums(tiles.sums + first * padded_values(shape), kLanes, shape.value_dim, least(kLanes, shape.queries - first),
              out.acc + first * shape.value_width, shape.value_width);
  });
}

// Queries that meet keys as they are.
template <class T>
bool are_plain_queries(const Shape& shape, const winnow_rows* keys) {
  if (!std::is_same_v<T, Bf16> || shape.key_dim % kTileChannels) return false;
  return !keys || !(keys->rotated || keys->spreads || keys->means || lacks_channels(*keys));
}

inline void take_plain_queries(const Shape& shape, const Queries& queries, const MatrixScratch& matrix,
                               const TileScratch& tiles) {
  for (int64_t first = 0; first < shape.queries; first += Vec::width) {
    turn_queries<Vec::width>(shape, queries, first, tiles.queries + first * padded_keys(shape) / 2);
    store(matrix.biases + first, broadcast(0.0f));
  }
}

template <class T>
void tiles_dense_chunk(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                       const Partial& out) {
  constexpr bool kExact = std::is_same_v<T, Bf16>;
  const MatrixScratch matrix = matrix_scratch(shape, scratch.matrix);
  const TileScratch tiles = tile_scratch(shape, scratch.tiles);
  TileSource<T, DenseRows<T, false>> keys{{chunk.keys, shape.key_dim}, {chunk.keys, shape.key_dim}, kExact};
  TileSource<T, DenseRows<T, true>> values{{chunk.values, shape.value_dim}, {chunk.values, shape.value_dim}, kExact};
  if (are_plain_queries<T>(shape, nullptr)) {
    take_plain_queries(shape, queries, matrix, tiles);
  } else {
    make_panels<T>(shape, queries, scratch, matrix);
    take_queries(shape, matrix.panels, keys.dim(), tiles);
  }
  attend_blocks_in_tiles(shape, matrix, tiles, kExact, chunk.tokens, keys, values, out);
}

template <class T>
void tiles_packed_chunk(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                        const Partial& out) {
  const MatrixScratch matrix = matrix_scratch(shape, scratch.matrix);
  const TileScratch tiles = tile_scratch(shape, scratch.tiles);
  const PackedScratch packed = packed_scratch(shape, scratch.packed);
  const winnow_rows &key_rows = chunk.part->keys, &value_rows = chunk.part->values;
  TileSource<T, PackedRows<T, true>> keys{{key_rows, chunk},
                                          {key_rows, chunk, shape.key_dim, packed.reader, packed.row_floats},
                                          reads_exactly<T>(key_rows)};
  TileSource<T, PackedRows<T, false>> values{{value_rows, chunk},
                                             {value_rows, chunk, shape.value_dim, packed.tile, packed.row_floats},
                                             reads_exactly<T>(value_rows)};
  if (are_plain_queries<T>(shape, &key_rows)) {
    take_plain_queries(shape, queries, matrix, tiles);
  } else {
    make_panels<T>(shape, chunk, queries, scratch, packed, matrix);
    take_queries(shape, matrix.panels, keys.dim(), tiles);
  }
  const bool exact_queries = std::is_same_v<T, Bf16> && !key_rows.rotated && !key_rows.spreads;
  attend_blocks_in_tiles(shape, matrix, tiles, exact_queries, chunk.tokens, keys, values, out);
  for (int64_t q = 0; q < shape.queries; ++q) finish_sums<1, T>(shape, chunk, out.acc + q * shape.value_width);
}

}  // namespace
}  // namespace winnow
