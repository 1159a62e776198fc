// What tokens that go through a state together are to each other: what one adds to a state counts for those after it.
#pragma once

#include <cmath>
#include <cstdint>

#include "delta/tokens.hpp"
#include "simd/scalar.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Products of a token's key and of its query with the keys of those before it and its own; a query's with itself.
template <int kTokens>
struct DeltaProducts {
  float keys[kTokens][kTokens], queries[kTokens][kTokens], squares[kTokens];
};

template <int kTokens>
inline DeltaProducts<kTokens> multiply_tokens(const DeltaTokens<kTokens>& tokens, int64_t dim) {
  Vec keys[kTokens][kTokens], queries[kTokens][kTokens], squares[kTokens];
  unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
    squares[t] = broadcast(0.0f);
    unroll<t + 1>([&](auto s) __attribute__((always_inline)) { keys[t][s] = queries[t][s] = broadcast(0.0f); });
  });
  for (int64_t i = 0; i < dim; i += Vec::width) {
    Vec key[kTokens];
    unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
      key[t] = load(tokens.keys[t] + i);
      const Vec query = load(tokens.queries[t] + i);
      squares[t] = fma(query, query, squares[t]);
      unroll<t + 1>([&](auto s) __attribute__((always_inline)) {
        keys[t][s] = fma(key[t], key[s], keys[t][s]);
        queries[t][s] = fma(query, key[s], queries[t][s]);
      });
    });
  }
  DeltaProducts<kTokens> products;
  unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
    products.squares[t] = lane_sum(squares[t]);
    unroll<t + 1>([&](auto s) __attribute__((always_inline)) {
      products.keys[t][s] = lane_sum(keys[t][s]);
      products.queries[t][s] = lane_sum(queries[t][s]);
    });
  });
  return products;
}

// By what everything is multiplied. Keys and queries keep their lengths in memory, which these numbers make up for.
template <int kTokens>
struct DeltaWeights {
  // What the state before all of them has for a token's key and query.
  float known[kTokens], queried[kTokens];
  // What a token before it, or itself, changed.
  float keys[kTokens][kTokens], queries[kTokens][kTokens];
  float rates[kTokens];
  // What a token changed, and the state itself, in the state after all of them.
  float added[kTokens], kept;
};

inline float one_over_length(float square, bool normalized) { return normalized ? 1.0f / std::sqrt(square + 1e-6f) : 1.0f; }

template <int kTokens, class T>
DeltaWeights<kTokens> weigh_tokens(const winnow_delta_args& args, const DeltaHead<T>& head, int64_t first,
                                   const DeltaTokens<kTokens>& tokens) {
  const DeltaProducts<kTokens> products = multiply_tokens(tokens, args.key_dim);
  const float root = 1.0f / std::sqrt(static_cast<float>(args.key_dim));
  float of_keys[kTokens], since[kTokens];  // since: all decays since each token
  DeltaWeights<kTokens> weights;
  weights.kept = 1.0f;
  for (int64_t t = 0; t < kTokens; ++t) {
    const int64_t at = (first + t) * args.value_heads;
    const bool is = first + t < args.tokens;
    const float decay = is ? std::exp(head.decays[at]) : 1.0f;
    const float of_query = root * one_over_length(products.squares[t], args.normalized);
    of_keys[t] = one_over_length(products.keys[t][t], args.normalized);
    weights.rates[t] = is ? to_float(head.rates[at]) : 0.0f;
    weights.kept *= decay;
    weights.known[t] = weights.kept * of_keys[t];
    weights.queried[t] = weights.kept * of_query;
    for (int64_t s = 0; s < t; ++s) since[s] *= decay;
    since[t] = 1.0f;
    for (int64_t s = 0; s <= t; ++s) {
      const float one = since[s] * of_keys[s];
      weights.keys[t][s] = one * of_keys[t] * products.keys[t][s];
      weights.queries[t][s] = one * of_query * products.queries[t][s];
    }
  }
  for (int64_t s = 0; s < kTokens; ++s) weights.added[s] = since[s] * of_keys[s];
  return weights;
}

}  // namespace
}  // namespace winnow
