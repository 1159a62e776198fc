// Chunk functions for many queries that all see the whole chunk: its tokens are read and unpacked once, a block at a
// time, and meet all queries as products of matrices.
#pragma once

#include <cstring>

#include "attend/contract.hpp"
#include "attend/partials.hpp"
#include "matrix/products.hpp"
#include "matrix/queries.hpp"
#include "matrix/rows.hpp"
#include "matrix/sizes.hpp"
#include "matrix/softmax.hpp"
#include "packed/dots.hpp"
#include "packed/values.hpp"

namespace winnow {
namespace {

// From this many queries on, these are faster than chunk functions that read keys and values where they lie.
constexpr int64_t kMatrixQueries = Vec::width >= 16 ? 48 : 16;

// True where they are: every query sees all tokens, and these may not be multiplied as they lie, which is faster.
template <class T>
bool matrix_serves(const Shape& shape, const Chunk& chunk) {
  return shape.queries >= kMatrixQueries && all_see(shape, chunk) && !multiplies_as_they_lie<T>(shape, chunk);
}

// A block of tokens and a panel of kVectors vectors of queries.
template <int kVectors>
inline void attend_panel(const Shape& shape, const MatrixScratch& matrix, int64_t key_dim, int64_t first,
                         int64_t tokens, const Partial& out) {
  constexpr int64_t kLanes = kVectors * Vec::width;
  score_panel<kVectors>(matrix.panels + first * key_dim, matrix.keys, key_dim, tokens, matrix.logits);
  const Cap cap(shape);
  for (int64_t lane = 0; lane < kLanes; lane += Vec::width) {
    float* logits = matrix.logits + lane;
    const Vec bias = load(matrix.biases + first + lane);
    const auto logit_of = [&](int64_t t) {
      return cap(fma(load(logits + t * kLanes), broadcast(matrix.key_scales[t]), bias));
    };
    softmax_lanes(tokens, logit_of, matrix.value_scales, logits, kLanes, out.max + first + lane, out.sum + first + lane,
                  matrix.factors + lane);
  }
  weigh_panel(matrix.logits, kLanes, least(kLanes, shape.queries - first), matrix.factors, matrix.values,
              shape.value_dim, tokens, out.acc + first * shape.value_width, shape.value_width);
}

// A chunk whose queries lie in panels, `key_dim` channels each.
template <class Keys, class Values>
inline void attend_blocks(const Shape& shape, const MatrixScratch& matrix, int64_t tokens, Keys& keys, Values& values,
                          const Partial& out) {
  clear(shape, out);
  const int64_t key_dim = keys.dim();
  for (int64_t t = 0; t < tokens; t += kBlockTokens) {
    const int64_t count = least(kBlockTokens, tokens - t);
    read_block(shape, matrix, keys, values, count);
    const int64_t absent = round_up(count, kTokenGroup) - count;
    // Whole groups are multiplied.
    std::memset(matrix.keys + count * key_dim, 0, static_cast<size_t>(absent * key_dim) * sizeof(float));
    for_panels(shape, [&](int64_t first, auto vectors) {
      attend_panel<decltype(vectors)::value>(shape, matrix, key_dim, first, count, out);
    });
  }
}

template <class T>
void matrix_dense_chunk(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                        const Partial& out) {
  const MatrixScratch matrix = matrix_scratch(shape, scratch.matrix);
  make_panels<T>(shape, queries, scratch, matrix);
  DenseRows<T, false> keys(chunk.keys, shape.key_dim);
  DenseRows<T, true> values(chunk.values, shape.value_dim);
  attend_blocks(shape, matrix, chunk.tokens, keys, values, out);
}

template <class T>
void matrix_packed_chunk(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                         const Partial& out) {
  const MatrixScratch matrix = matrix_scratch(shape, scratch.matrix);
  const PackedScratch packed = packed_scratch(shape, scratch.packed);
  make_panels<T>(shape, chunk, queries, scratch, packed, matrix);
  PackedRows<T, true> keys(chunk.part->keys, chunk, shape.key_dim, packed.reader, packed.row_floats);
  PackedRows<T, false> values(chunk.part->values, chunk, shape.value_dim, packed.tile, packed.row_floats);
  attend_blocks(shape, matrix, chunk.tokens, keys, values, out);
  for (int64_t q = 0; q < shape.queries; ++q) finish_sums<1, T>(shape, chunk, out.acc + q * shape.value_width);
}

}  // namespace
}  // namespace winnow
