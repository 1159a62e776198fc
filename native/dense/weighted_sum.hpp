// Sums of values under the weights of a few queries.
#pragma once

#include "attend/contract.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Tokens whose values pass through the registers together: few enough to stay in the first-level cache.
constexpr int64_t kValueBlock = 32;

// How many tokens before strips of one meet the first-level cache is asked for them.
constexpr int64_t kTokensAhead = 8;

// Asks for the strips of a token to come, kBytes bytes, while those at `strips` are read, and for as many bytes `later`.
template <int64_t kBytes, bool kTwice>
inline void ask_for_strips(const char* strips, int64_t row_bytes, const char* later) {
  for (int64_t byte = 0; byte < kBytes; byte += kLine) {
    if constexpr (kTwice) prefetch_for_later(later + byte, 1);
    prefetch(kTwice ? strips + kTokensAhead * row_bytes + byte : later + byte);
  }
}

// acc[q][0..kStrips·width) += sum over t of weights[q][t]·values[t][..] for kQueries queries.
template <int kQueries, int kStrips, bool kTwice, class T, class LoadStrips>
inline void weighted_tile(const float* weights, const T* values, int64_t dim, int64_t tokens, float* acc,
                          int64_t acc_width, const char* ahead, const LoadStrips& load_strips) {
  constexpr int64_t kStripBytes = kStrips * Vec::width * static_cast<int64_t>(sizeof(T));
  const int64_t row_bytes = dim * static_cast<int64_t>(sizeof(T)), step = kTwice ? kStripBytes : row_bytes;
  Vec sums[kQueries * kStrips];
  unroll<kQueries * kStrips>([&](auto i) {
    sums[i] = load(acc + i / kStrips * acc_width + i % kStrips * Vec::width);
  });
  for (int64_t t = 0; t < tokens; ++t) {
    ask_for_strips<kStripBytes, kTwice>(reinterpret_cast<const char*>(values + t * dim), row_bytes, ahead + t * step);
    Vec v[kStrips];
    load_strips(values + t * dim, v);
    unroll<kQueries>([&](auto i) {
      const Vec w = broadcast(weights[i * kLogitStride + t]);
      unroll<kStrips>([&](auto s) { sums[i * kStrips + s] = fma(w, v[s], sums[i * kStrips + s]); });
    });
  }
  unroll<kQueries * kStrips>([&](auto i) {
    store(acc + i / kStrips * acc_width + i % kStrips * Vec::width, sums[i]);
  });
}

// The same for all of the value dimension: as many strips at once as registers allow, then a pair, then the rest. Bytes from
// `ahead` on are asked for: with kTwice one after another, whatever strips meet them, since the second-level cache foresees
// what comes in order; else those of the same strips.
template <int kQueries, bool kTwice, class T>
inline void weigh_block(const Shape& shape, const float* weights, const T* values, int64_t tokens,
                        const char* ahead, float* acc) {
  constexpr int kStrips = Vec::width / kQueries;
  constexpr int64_t kBytes = static_cast<int64_t>(sizeof(T));
  const int64_t dim = shape.value_dim;
  const auto pairs = [](const T* p, auto& v) {
    unroll<sizeof(v) / sizeof(Vec) / 2>([&](auto i) { load_pair(p + 2 * i * Vec::width, v[2 * i], v[2 * i + 1]); });
  };
  int64_t d = 0;
  const auto run = [&](auto strips, const auto& load_strips) {
    weighted_tile<kQueries, decltype(strips)::value, kTwice>(weights, values + d, dim, tokens, acc + d, shape.value_width,
                                                             ahead + d * (kTwice ? tokens : 1) * kBytes, load_strips);
    d += strips * Vec::width;
  };
  while (d + kStrips * Vec::width <= dim) run(Count<kStrips>{}, pairs);
  while (d + 2 * Vec::width <= dim) run(Count<2>{}, pairs);
  if (d + Vec::width <= dim) run(Count<1>{}, [](const T* p, Vec(&v)[1]) { v[0] = load(p); });
  if (d < dim) run(Count<1>{}, [&](const T* p, Vec(&v)[1]) { v[0] = load_first(p, dim - d); });
}

// Half a vector of queries at most: each needs a pair of accumulators.
template <int kQueries, bool kTwice, class T>
inline void weigh(const Shape& shape, const float* weights, const T* values, int64_t tokens, const char* ahead,
                  float* acc) {
  constexpr int kBlock = kQueries < Vec::width / 2 ? kQueries : Vec::width / 2;
  for (int first = 0; first < kQueries; first += kBlock) {
    weigh_block<kBlock, kTwice>(shape, weights + first * kLogitStride, values, tokens, ahead,
                                acc + first * shape.value_width);
  }
}

// The same for values of any number, read where they lie.
template <int kQueries, class T>
inline void weigh_tokens(const Shape& shape, const float* weights, const T* values, int64_t tokens, float* acc) {
  constexpr bool kTwice = meet_arithmetic(kQueries, sizeof(T));
  const T* last = values + tokens * shape.value_dim - 1;
  for (int64_t t = 0; t < tokens; t += kValueBlock) {
    const T* block = values + t * shape.value_dim;
    const int64_t count = least(kValueBlock, tokens - t);
    // The first strips of a block meet all of its tokens, so that these have to be there before.
    const char* ahead = clamped_ahead_of(kTwice ? block + count * shape.value_dim : block, last);
    weigh<kQueries, kTwice>(shape, weights + t, block, count, ahead, acc);
  }
}

}  // namespace
}  // namespace winnow
