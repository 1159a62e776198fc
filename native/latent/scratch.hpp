// A thread's own memory for latents of a chunk that are unpacked a block at a time.
#pragma once

#include "attend/contract.hpp"
#include "matrix/sizes.hpp"
#include "sizes.hpp"

namespace winnow {

// The pieces of Scratch::matrix where a chunk is one of latents.
struct LatentScratch {
  float* latents;         // [kBlockTokens, D]
  float* rotated;         // [kBlockTokens, Dv]
  float* sum_scales;      // [kBlockTokens], by which weights of latents are multiplied
  float* latent_scales;   // [kBlockTokens], by which their logits are
  float* rotated_scales;  // [kBlockTokens], and those of rotated channels
  float* logits;          // [kBlockTokens, kPanelQueries], of latents; then of all, then weights
  float* others;          // [kBlockTokens, kPanelQueries], of rotated channels
  float* factors;         // [kPanelQueries]
  float* biases;          // [queries]
  float* panels;          // [queries, D + Dv], panel after panel
};

namespace {

// Channels of rotated keys.
constexpr int64_t rotated_dim(const Shape& shape) { return shape.key_dim - shape.value_dim; }

constexpr int64_t fp32_floats(const Shape& shape) {
  return block_floats(shape.value_dim) + block_floats(rotated_dim(shape)) + (2 * kBlockTokens + 1) * kPanelQueries +
         3 * kBlockTokens + padded_queries(shape) * (shape.key_dim + 1);
}

// Enough for these pieces, and for the logits of a block of queries where numbers stay integers.
constexpr int64_t latent_floats(const Shape& shape) {
  const int64_t panels = fp32_floats(shape), logits = kQueryPad * kLogitStride;
  return panels < logits ? logits : panels;
}

inline LatentScratch latent_scratch(const Shape& shape, float* memory) {
  LatentScratch pieces;
  pieces.latents = memory;
  pieces.rotated = pieces.latents + block_floats(shape.value_dim);
  pieces.sum_scales = pieces.rotated + block_floats(rotated_dim(shape));
  pieces.latent_scales = pieces.sum_scales + kBlockTokens;
  pieces.rotated_scales = pieces.latent_scales + kBlockTokens;
  pieces.logits = pieces.rotated_scales + kBlockTokens;
  pieces.others = pieces.logits + kBlockTokens * kPanelQueries;
  pieces.factors = pieces.others + kBlockTokens * kPanelQueries;
  pieces.biases = pieces.factors + kPanelQueries;
  pieces.panels = pieces.biases + padded_queries(shape);
  return pieces;
}

}  // namespace
}  // namespace winnow
