// Chunk functions for many queries in bf16, as products in tiles. What bf16 does not hold of a number is multiplied
// beside it, so that products are finer than what they are made of.
#pragma once

#include <cstring>

#include "attend/contract.hpp"
#include "attend/partials.hpp"
#include "matrix/amx/operands.hpp"
#include "matrix/amx/products.hpp"
#include "matrix/amx/sizes.hpp"
#include "matrix/queries.hpp"
#include "matrix/rows.hpp"
#include "matrix/sizes.hpp"
#include "matrix/softmax.hpp"
#include "packed/dots.hpp"
#include "packed/values.hpp"
#include "simd/element.hpp"

namespace winnow {
namespace {

// Which operands bf16 holds.
struct Exact {
  bool keys, values, queries;
};

inline bool exact_rows(const winnow_rows& rows) {
  return !rows.masks && (rows.bits == 16 || rows.scaling == WINNOW_PER_SLOT);
}

// From this many queries on, tiles are faster than chunk functions that read keys and values where they lie.
constexpr int64_t kTileQueries = 32;

// The same where integers may be multiplied as they lie.
constexpr int64_t kTileQueriesOfIntegers = 64;

inline bool tiles_serve(const Shape& shape, const Chunk& chunk) {
  const bool integers = chunk.part && multiplies_as_they_lie<Bf16>(shape, chunk);
  return shape.queries >= (integers ? kTileQueriesOfIntegers : kTileQueries) && chunk.visible >= chunk.tokens;
}

template <int kVectors>
inline void attend_tiles(const Shape& shape, const MatrixScratch& matrix, const TileScratch& tiles, const Exact& exact,
                         int64_t first, int64_t tokens, const Partial& out) {
  constexpr int64_t kLanes = kVectors * Vec::width;
  score_tiles<kVectors>(tiles, padded_keys(shape) / 2, first / Vec::width, exact.keys, exact.queries, tokens,
                        matrix.logits);
  for (int64_t lane = 0; lane < kLanes; lane += Vec::width) {
    softmax_lanes(shape, matrix, matrix.logits + lane, kLanes, tokens, load(matrix.biases + first + lane),
                  out.max + first + lane, out.sum + first + lane, matrix.factors + lane);
  }
  take_weights<kVectors>(matrix.logits, tokens, tiles);
  weigh_tiles<kVectors>(tiles, matrix.factors, shape.value_dim, exact.values, tokens,
                        tiles.sums + first * padded_values(shape));
}

// A chunk whose queries lie in panels.
template <class Keys, class Values>
inline void attend_blocks_in_tiles(const Shape& shape, const MatrixScratch& matrix, const TileScratch& tiles,
                                   const Exact& exact, int64_t tokens, Keys& keys, Values& values, const Partial& out) {
  const Tiles here;
  clear(shape, out);
  std::memset(tiles.sums, 0, static_cast<size_t>(padded_queries(shape) * padded_values(shape)) * sizeof(float));
  take_queries(shape, matrix.panels, keys.dim(), tiles);
  for (int64_t t = 0; t < tokens; t += kBlockTokens) {
    const int64_t count = least(kBlockTokens, tokens - t);
    read_block(shape, matrix, keys, values, count);
    take_keys(shape, matrix.keys, keys.dim(), count, exact.keys, tiles);
    take_values(matrix.values, shape.value_dim, count, exact.values, tiles);
    for_panels(shape, [&](int64_t first, auto vectors) {
      attend_tiles<decltype(vectors)::value>(shape, matrix, tiles, exact, first, count, out);
    });
  }
  for_panels(shape, [&](int64_t first, auto vectors) {
    constexpr int64_t kLanes = decltype(vectors)::value * Vec::width;
    give_sums(tiles.sums + first * padded_values(shape), kLanes, shape.value_dim, least(kLanes, shape.queries - first),
              out.acc + first * shape.value_width, shape.value_width);
  });
}

inline void tiles_dense_chunk(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                              const Partial& out) {
  const MatrixScratch matrix = matrix_scratch(shape, scratch.matrix);
  make_panels<Bf16>(shape, queries, scratch, matrix);
  DenseRows<Bf16, false> keys(chunk.keys, shape.key_dim);
  DenseRows<Bf16, true> values(chunk.values, shape.value_dim);
  attend_blocks_in_tiles(shape, matrix, tile_scratch(shape, scratch.tiles), {true, true, true}, chunk.tokens, keys,
                         values, out);
}

inline void tiles_packed_chunk(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                               const Partial& out) {
  const MatrixScratch matrix = matrix_scratch(shape, scratch.matrix);
  const PackedScratch packed = packed_scratch(shape, scratch.packed);
  const winnow_rows &key_rows = chunk.part->keys, &value_rows = chunk.part->values;
  make_panels<Bf16>(shape, chunk, queries, scratch, packed, matrix);
  PackedRows<Bf16, true> keys(key_rows, chunk, shape.key_dim, packed.reader, packed.row_floats);
  PackedRows<Bf16, false> values(value_rows, chunk, shape.value_dim, packed.tile, packed.row_floats);
  const Exact exact{exact_rows(key_rows), exact_rows(value_rows), !key_rows.rotated && !key_rows.spreads};
  attend_blocks_in_tiles(shape, matrix, tile_scratch(shape, scratch.tiles), exact, chunk.tokens, keys, values, out);
  for (int64_t q = 0; q < shape.queries; ++q) finish_sums<1, Bf16>(shape, chunk, out.acc + q * shape.value_width);
}

}  // namespace
}  // namespace winnow
