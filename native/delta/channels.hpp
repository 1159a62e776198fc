// Kimi Delta Attention: every channel of a head's keys decays by itself, so that decays meet keys and queries before products.
#pragma once

#include <algorithm>
#include <cstdint>

#include "delta/tokens.hpp"
#include "delta/weights.hpp"
#include "simd/math.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// What a decay leaves of each channel, by its logarithm. Nothing in place of less than 1e-14, so that products of two tokens'
// are far enough from subnormal numbers, as `exp` is.
inline Vec left_by(Vec logarithms) {
  return if_less(logarithms, broadcast(-32.0f), broadcast(0.0f), exp(logarithms));
}

// Has the channels of tokens decay. Their products are those of a key or query with keys that decayed until then.
template <int kTokens, class T>
inline DeltaProducts<kTokens> decay_channels(const winnow_delta_args& args, const DeltaHead<T>& head, int64_t first,
                                             DecayedTokens<kTokens>& tokens) {
  const int64_t dim = args.key_dim, stride = args.value_heads * dim, count = args.tokens - first;
  const float* decays = head.decays + first * stride;
  DeltaSums<kTokens> sums;
  clear_products(sums);
  for (int64_t i = 0; i < dim; i += Vec::width) {
    Vec keys[kTokens], kept = broadcast(1.0f);
    unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
      const Vec left = left_by(t < count ? load_up_to(decays + t * stride + i, dim - i) : broadcast(0.0f));
      kept = kept * left;
      unroll<t>([&](auto s) __attribute__((always_inline)) { keys[s] = keys[s] * left; });
      const Vec query = load(tokens.queries[t] + i);
      keys[t] = load(tokens.keys[t] + i);
      add_products<t>(keys[t], query, keys, sums);
      store(tokens.keys[t] + i, keys[t] * kept);
      store(tokens.queries[t] + i, query * kept);
    });
    store(tokens.kept + i, kept);
    unroll<kTokens>([&](auto t) __attribute__((always_inline)) { store(tokens.added[t] + i, keys[t]); });
  }
  return sum_products(sums);
}

template <int kTokens, class T>
DeltaWeights<kTokens> weigh_tokens(const winnow_delta_args& args, const DeltaHead<T>& head, int64_t first,
                                   DecayedTokens<kTokens>& tokens) {
  const DeltaProducts<kTokens> products = decay_channels(args, head, first, tokens);
  float decays[kTokens];
  std::fill_n(decays, kTokens, 1.0f);  // all are in the tokens
  return weigh_products(args, head, first, products, decays);
}

}  // namespace
}  // namespace winnow
