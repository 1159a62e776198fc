// Products of a block of tokens with a panel of queries: lanes are queries where logits are found, and channels where
// values are summed, so that nothing is summed over lanes.
#pragma once

#include <cstdint>
#include <cstring>

#include "matrix/sizes.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Tokens whose logits with two vectors of queries stay in registers together.
constexpr int kTokenGroup = Vec::width >= 16 ? 12 : 6;
static_assert(kBlockTokens % kTokenGroup == 0, "blocks are whole groups of tokens");

// logits[t][q] = keys[t] · panel[..][q] for kVectors vectors of queries and all tokens, rounded up to whole groups.
template <int kVectors>
__attribute__((noinline)) void score_panel(const float* panel, const float* keys, int64_t dim, int64_t tokens,
                                           float* logits) {
  constexpr int64_t kLanes = kVectors * Vec::width;
  for (int64_t t = 0; t < tokens; t += kTokenGroup) {
    const float* group = keys + t * dim;
    Vec sums[kTokenGroup * kVectors];
    unroll<kTokenGroup * kVectors>([&](auto i) { sums[i] = broadcast(0.0f); });
    for (int64_t d = 0; d < dim; ++d) {
      Vec query[kVectors];
      unroll<kVectors>([&](auto v) { query[v] = load(panel + d * kLanes + v * Vec::width); });
      unroll<kTokenGroup>([&](auto token) {
        const Vec key = broadcast(group[token * dim + d]);
        unroll<kVectors>([&](auto v) {
          constexpr int i = token * kVectors + v;
          sums[i] = fma(key, query[v], sums[i]);
        });
      });
    }
    unroll<kTokenGroup * kVectors>([&](auto i) { store(logits + t * kLanes + i * Vec::width, sums[i]); });
  }
}

// acc[q][..] = factors[q]·acc[q][..] + sum over t of weights[t][q]·values[t][..] for kQueries queries and kStrips
// vectors of channels; weights have `lanes` queries, values `dim` channels.
template <int kQueries, int kStrips>
__attribute__((always_inline)) inline void weigh_strips(const float* weights, int64_t lanes, const float* factors,
                                                        const float* values, int64_t dim, int64_t tokens, float* acc,
                                                        int64_t acc_width) {
  const auto place = [&](auto i) { return acc + i / kStrips * acc_width + i % kStrips * Vec::width; };
  Vec sums[kQueries * kStrips];
  unroll<kQueries * kStrips>([&](auto i) { sums[i] = broadcast(factors[i / kStrips]) * load(place(i)); });
  for (int64_t t = 0; t < tokens; ++t) {
    Vec value[kStrips];
    unroll<kStrips>([&](auto s) { value[s] = load(values + t * dim + s * Vec::width); });
    unroll<kQueries>([&](auto q) {
      const Vec weight = broadcast(weights[t * lanes + q]);
      unroll<kStrips>([&](auto s) {
        constexpr int i = q * kStrips + s;
        sums[i] = fma(weight, value[s], sums[i]);
      });
    });
  }
  unroll<kQueries * kStrips>([&](auto i) { store(place(i), sums[i]); });
}

// The same for all channels. Lanes behind the last channel hold what lies behind a row: nobody reads them.
template <int kQueries>
__attribute__((noinline)) void weigh_queries(const float* weights, int64_t lanes, const float* factors,
                                             const float* values, int64_t dim, int64_t tokens, float* acc,
                                             int64_t acc_width) {
  constexpr int kStrips = Vec::width >= 16 ? 4 : 2;
  int64_t d = 0;
  for (; d + kStrips * Vec::width <= dim; d += kStrips * Vec::width) {
    weigh_strips<kQueries, kStrips>(weights, lanes, factors, values + d, dim, tokens, acc + d, acc_width);
  }
  for (; d < dim; d += Vec::width) {
    weigh_strips<kQueries, 1>(weights, lanes, factors, values + d, dim, tokens, acc + d, acc_width);
  }
}

// The same for `count` queries of a panel.
inline void weigh_panel(const float* weights, int64_t lanes, int64_t count, const float* factors, const float* values,
                        int64_t dim, int64_t tokens, float* acc, int64_t acc_width) {
  int64_t q = 0;
  for (; q + 4 <= count; q += 4) {
    weigh_queries<4>(weights + q, lanes, factors + q, values, dim, tokens, acc + q * acc_width, acc_width);
  }
  for (; q < count; ++q) {
    weigh_queries<1>(weights + q, lanes, factors + q, values, dim, tokens, acc + q * acc_width, acc_width);
  }
}

}  // namespace
}  // namespace winnow
