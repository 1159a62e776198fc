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

// The same while they are summed up.
template <int kTokens>
struct DeltaSums {
  Vec keys[kTokens][kTokens], queries[kTokens][kTokens], squares[kTokens];
};

template <int kTokens>
__attribute__((always_inline)) inline void clear_products(DeltaSums<kTokens>& sums) {
  unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
    sums.squares[t] = broadcast(0.0f);
    unroll<t + 1>([&](auto s) __attribute__((always_inline)) { sums.keys[t][s] = sums.queries[t][s] = broadcast(0.0f); });
  });
}

// Adds channels of a token; those of its key, and of the keys before it, are in `keys`.
template <int kToken, int kTokens>
__attribute__((always_inline)) inline void add_products(Vec key, Vec query, const Vec (&keys)[kTokens],
                                                        DeltaSums<kTokens>& sums) {
  sums.squares[kToken] = fma(query, query, sums.squares[kToken]);
  unroll<kToken + 1>([&](auto s) __attribute__((always_inline)) {
    sums.keys[kToken][s] = fma(key, keys[s], sums.keys[kToken][s]);
    sums.queries[kToken][s] = fma(query, keys[s], sums.queries[kToken][s]);
  });
}

template <int kTokens>
__attribute__((always_inline)) inline DeltaProducts<kTokens> sum_products(const DeltaSums<kTokens>& sums) {
  DeltaProducts<kTokens> products;
  unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
    products.squares[t] = lane_sum(sums.squares[t]);
    unroll<t + 1>([&](auto s) __attribute__((always_inline)) {
      products.keys[t][s] = lane_sum(sums.keys[t][s]);
      products.queries[t][s] = lane_sum(sums.queries[t][s]);
    });
  });
  return products;
}

template <int kTokens>
inline DeltaProducts<kTokens> multiply_tokens(const DeltaTokens<kTokens>& tokens, int64_t dim) {
  DeltaSums<kTokens> sums;
  clear_products(sums);
  for (int64_t i = 0; i < dim; i += Vec::width) {
    Vec keys[kTokens];
    unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
      keys[t] = load(tokens.keys[t] + i);
      add_products<t>(keys[t], load(tokens.queries[t] + i), keys, sums);
    });
  }
  return sum_products(sums);
}

// By what everything is multiplied. Keys and queries keep their lengths in memory, which these numbers make up for.
template <int kTokens>
struct DeltaWeights {
  // What the state before all of them has for a token's key and query.
  float known[kTokens], queried[kTokens];
  // What a token before it, or itself, changed.
  float keys[kTokens][kTokens], queries[kTokens][kTokens];
  float rates[kTokens];
  // What a token changed, in the state after all of them.
  float added[kTokens];
};

inline float one_over_length(float square, bool normalized) { return normalized ? 1.0f / std::sqrt(square + 1e-6f) : 1.0f; }

// Of tokens with such products. decays: what each leaves of a state as a whole.
template <int kTokens, class T>
DeltaWeights<kTokens> weigh_products(const winnow_delta_args& args, const DeltaHead<T>& head, int64_t first,
                                     const DeltaProducts<kTokens>& products, const float (&decays)[kTokens]) {
  const float root = 1.0f / std::sqrt(static_cast<float>(args.key_dim));
  float of_keys[kTokens], since[kTokens], kept = 1.0f;  // since: all decays since each token
  DeltaWeights<kTokens> weights;
  for (int64_t t = 0; t < kTokens; ++t) {
    const float of_query = root * one_over_length(products.squares[t], args.normalized);
    of_keys[t] = one_over_length(products.keys[t][t], args.normalized);
    weights.rates[t] = first + t < args.tokens ? to_float(head.rates[(first + t) * args.value_heads]) : 0.0f;
    kept *= decays[t];
    weights.known[t] = kept * of_keys[t];
    weights.queried[t] = kept * of_query;
    for (int64_t s = 0; s < t; ++s) since[s] *= decays[t];
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

template <int kTokens, class T>
DeltaWeights<kTokens> weigh_tokens(const winnow_delta_args& args, const DeltaHead<T>& head, int64_t first,
                                   DeltaTokens<kTokens>& tokens) {
  float decays[kTokens];
  tokens.kept = 1.0f;
  for (int64_t t = 0; t < kTokens; ++t) {
    decays[t] = first + t < args.tokens ? std::exp(head.decays[(first + t) * args.value_heads]) : 1.0f;
    tokens.kept *= decays[t];
  }
  return weigh_products(args, head, first, multiply_tokens(tokens, args.key_dim), decays);
}

}  // namespace
}  // namespace winnow
