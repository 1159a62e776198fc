// Sizes of the blocks in which many queries meet tokens, and a thread's own memory for them.
#pragma once

#include "attend/contract.hpp"
#include "packed/scratch.hpp"
#include "sizes.hpp"

namespace winnow {

// Tokens whose keys and values are unpacked together: few enough to stay in the second-level cache, and whole
// groups of tokens for every instruction set.
constexpr int64_t kBlockTokens = 96;

// Queries of a panel, at most: two of the widest vectors.
constexpr int64_t kPanelQueries = 2 * kQueryPad;

// The pieces of Scratch::matrix.
struct MatrixScratch {
  float* keys;          // [kBlockTokens, D]
  float* values;        // [kBlockTokens, Dv]
  float* key_scales;    // [kBlockTokens], by which logits are multiplied
  float* value_scales;  // [kBlockTokens], by which weights are multiplied
  float* logits;        // [kBlockTokens, kPanelQueries]
  float* factors;       // [kPanelQueries]
  float* biases;        // [queries]
  float* panels;        // [queries, D], panel after panel
};

namespace {

constexpr int64_t block_floats(int64_t dim) { return round_up(kBlockTokens * dim + 2 * kRowSlack, 16); }

constexpr int64_t padded_queries(const Shape& shape) { return round_up(shape.queries, kPanelQueries); }

constexpr int64_t matrix_floats(const Shape& shape) {
  return block_floats(shape.key_dim) + block_floats(shape.value_dim) + (kBlockTokens + 1) * kPanelQueries +
         2 * kBlockTokens +
         padded_queries(shape) * (shape.query_width + 1);
}

inline MatrixScratch matrix_scratch(const Shape& shape, float* memory) {
  MatrixScratch pieces;
  pieces.keys = memory;
  pieces.values = pieces.keys + block_floats(shape.key_dim);
  pieces.key_scales = pieces.values + block_floats(shape.value_dim);
  pieces.value_scales = pieces.key_scales + kBlockTokens;
  pieces.logits = pieces.value_scales + kBlockTokens;
  pieces.factors = pieces.logits + kBlockTokens * kPanelQueries;
  pieces.biases = pieces.factors + kPanelQueries;
  pieces.panels = pieces.biases + padded_queries(shape);
  return pieces;
}

}  // namespace
}  // namespace winnow
