// The promise of functions between queries and outputs of heads and what those ask, and get, of latents.
//
// Head h makes the plain channels of its keys, W_k,h·c, and its values, W_v,h·c, of a latent c. What meets latents instead is
// W_k,h transposed times a query, and an output is W_v,h times a weighted sum of latents: attention straight over what is
// held. Queries are numbered row by row, token by token.
#pragma once

#include "attend/contract.hpp"
#include "sizes.hpp"
#include "winnow_native.h"

namespace winnow {

// A thread's own memory, for kQueryPad queries.
struct HeadScratch {
  float* query;   // [kQueryPad, width]
  float* edge;    // the same
  float* logits;  // [kQueryPad, kLogitStride]
  float* sums;    // [kQueryPad, width]
};

struct LatentKernel {
  // A head's queries -> asked[i][h]: those of latents, and behind them the rotated channels as they are.
  void (*ask)(const winnow_decode_args&, int64_t head, void* asked, const HeadScratch&);
  // sums[i][h] of latents -> the head's outputs.
  void (*answer)(const winnow_decode_args&, int64_t head, const void* sums, const HeadScratch&);
};

namespace {

// Channels of what asks latents and rotated channels.
constexpr int64_t asked_dim(const winnow_decode_args& args) { return args.key_dim + args.value_dim; }

// Floats between queries in a thread's memory.
constexpr int64_t head_width(const winnow_decode_args& args) { return round_up(args.key_dim, 16); }

constexpr int64_t head_floats(const winnow_decode_args& args) { return kQueryPad * (3 * head_width(args) + kLogitStride); }

inline HeadScratch head_scratch(const winnow_decode_args& args, float* memory) {
  const int64_t block = kQueryPad * head_width(args);
  return {memory, memory + block, memory + 3 * block, memory + 2 * block};
}

// The matrices of a head, above which plain channels of keys are made, and below which values.
constexpr int64_t rows_of_head(const winnow_latent& latent) { return latent.plain_dim + latent.output_dim; }

}  // namespace
}  // namespace winnow
