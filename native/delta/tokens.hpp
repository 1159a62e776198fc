// Tokens that go through a state of a delta rule together, in fp32.
#pragma once

#include <cstdint>

#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "winnow_native.h"

namespace winnow {
namespace {

// One value head of one row, from the first column of a block on.
template <class T>
struct DeltaHead {
  const T *queries, *keys, *values, *rates;
  const float* decays;
  float* state;
  T* outputs;
};

template <class T>
inline DeltaHead<T> delta_head(const winnow_delta_args& args, int64_t row, int64_t head, int64_t column) {
  const int64_t key_head = head / (args.value_heads / args.key_heads);
  const int64_t each = row * args.value_heads + head, first = row * args.tokens * args.value_heads + head;
  return {static_cast<const T*>(args.queries) + row * args.query_row + key_head * args.key_dim,
          static_cast<const T*>(args.keys) + row * args.key_row + key_head * args.key_dim,
          static_cast<const T*>(args.values) + row * args.value_row + head * args.value_dim + column,
          static_cast<const T*>(args.rates) + first,
          args.decays + first * (args.per_channel ? args.key_dim : 1),
          args.states + each * args.key_dim * args.value_dim + column,
          static_cast<T*>(args.outputs) + first * args.value_dim + column};
}

// From a token's numbers to the next one's: a line more than they need, so that those of all share no set of a cache.
constexpr int64_t kDeltaRow = WINNOW_DELTA_KEYS + 16;

template <int kTokens>
using DeltaRows = float[kTokens][kDeltaRow];

// Those of a head that decays as a whole.
template <int kTokens>
struct DeltaTokens {
  static constexpr int kCount = kTokens;
  alignas(64) DeltaRows<kTokens> keys, queries;
  // What is kept of the state before all of them.
  float kept;
};

// Those of a head whose channels decay by themselves. Keys and queries are as they read the state before all of them: times
// all decays up to each.
template <int kTokens>
struct DecayedTokens {
  static constexpr int kCount = kTokens;
  alignas(64) DeltaRows<kTokens> keys, queries;
  // Keys as they are added to the state after all of them: times the decays behind each.
  DeltaRows<kTokens> added;
  float kept[kDeltaRow];
};

// Numbers in fp32, filled up to whole vectors with zeros; zeros alone where there are none.
template <class T>
inline void widen_channels(const T* from, int64_t dim, float* to) {
  for (int64_t i = 0; i < dim; i += Vec::width) store(to + i, from ? load_up_to(from + i, dim - i) : broadcast(0.0f));
}

// Keys and queries from the first token on; beyond the last there are zeros, which change nothing.
template <class Tokens, class T>
inline void read_tokens(const winnow_delta_args& args, const DeltaHead<T>& head, int64_t first, Tokens& to) {
  for (int64_t t = 0; t < Tokens::kCount; ++t) {
    const int64_t token = first + t;
    const bool is = token < args.tokens;
    widen_channels(is ? head.keys + token * args.key_token : nullptr, args.key_dim, to.keys[t]);
    widen_channels(is ? head.queries + token * args.query_token : nullptr, args.key_dim, to.queries[t]);
  }
}

}  // namespace
}  // namespace winnow
