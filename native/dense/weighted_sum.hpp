// Sums of values under the weights of a few queries.
#pragma once

#include <algorithm>

#include "attend/contract.hpp"
#include "attend/weights.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Of a block of values, half of which is read at a time where it has more.
constexpr int64_t kMostBlockBytes = kZen ? 16384 : 1 << 30;

// Rows of a block of values of type T, which stays in the first-level cache.
template <class T>
constexpr int64_t block_rows(int64_t dim) {
  const int64_t whole = kWeightTokens * dim * static_cast<int64_t>(sizeof(T));
  return whole > kMostBlockBytes ? kWeightTokens / 2 : kWeightTokens;
}

// What is asked for while values are read that do not lie in the first-level cache: lines from `first` on, one after another,
// whatever strips are at hand: the second-level cache foresees what comes in order. And, but for kAskOnce, the same strips
// again, a few tokens before they are read.
struct LinesAhead {
  static constexpr int64_t kTokens = 8;
  const char* first;

  // Of rows of row_bytes bytes, kBytes each at `strips` are read; `asked` bytes were asked for before.
  template <int64_t kBytes>
  void ask(const char* strips, int64_t row_bytes, int64_t asked) const {
    for (int64_t byte = 0; byte < kBytes; byte += kLine) {
      if (kAskOnce) {
        prefetch(first + asked + byte);
      } else {
        prefetch_for_later(first + asked + byte, 1);
        prefetch(strips + kTokens * row_bytes + byte);
      }
    }
  }
};

// acc[q][0..kStrips·width) += sum over t of weights[q][t]·values[t][..] for kQueries queries, after `asked` bytes.
template <int kQueries, int kStrips, class T, class Ahead, class LoadStrips>
inline void weighted_tile(const float* weights, const T* values, int64_t dim, int64_t tokens, float* acc,
                          int64_t acc_width, const Ahead& ahead, int64_t asked, const LoadStrips& load_strips) {
  constexpr int64_t kBytes = static_cast<int64_t>(sizeof(T)), kStripBytes = kStrips * Vec::width * kBytes;
  Vec sums[kQueries * kStrips];
  unroll<kQueries * kStrips>([&](auto i) {
    sums[i] = load(acc + i / kStrips * acc_width + i % kStrips * Vec::width);
  });
  for (int64_t t = 0; t < tokens; ++t) {
    ahead.template ask<kStripBytes>(reinterpret_cast<const char*>(values + t * dim), dim * kBytes,
                                    asked + t * kStripBytes);
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

// Strips that a pass sums up for so many queries: a power of two, so that rows are whole passes. For 5 and 6 queries more
// registers hold sums than for others, since half as many strips would load weights twice as often.
constexpr int strips_at_once(int queries) {
  const int most = queries == 5 || queries == 6 ? 24 : Vec::width;
  int strips = 1;
  while (2 * strips * queries <= most) strips *= 2;
  return strips;
}

// The same for all of the value dimension: as many strips at once as registers allow, then fewer, then the rest.
template <int kQueries, class T, class Ahead>
inline void weigh_block(const Shape& shape, const float* weights, const T* values, int64_t tokens, const Ahead& ahead,
                        float* acc) {
  constexpr int kStrips = strips_at_once(kQueries);
  const int64_t dim = shape.value_dim;
  const auto pairs = [](const T* p, auto& v) {
    unroll<sizeof(v) / sizeof(Vec) / 2>([&](auto i) { load_pair(p + 2 * i * Vec::width, v[2 * i], v[2 * i + 1]); });
  };
  int64_t d = 0;
  const auto run = [&](auto strips, const auto& load_strips) {
    weighted_tile<kQueries, decltype(strips)::value>(weights, values + d, dim, tokens, acc + d, shape.value_width, ahead,
                                                     d * tokens * static_cast<int64_t>(sizeof(T)), load_strips);
    d += strips * Vec::width;
  };
  while (d + kStrips * Vec::width <= dim) run(Count<kStrips>{}, pairs);
  if constexpr (kZen && kStrips > 4) {
    while (d + kStrips / 2 * Vec::width <= dim) run(Count<kStrips / 2>{}, pairs);
    while (d + 4 * Vec::width <= dim) run(Count<4>{}, pairs);
  }
  while (d + 2 * Vec::width <= dim) run(Count<2>{}, pairs);
  if (d + Vec::width <= dim) run(Count<1>{}, [](const T* p, Vec(&v)[1]) { v[0] = load(p); });
  if (d < dim) run(Count<1>{}, [&](const T* p, Vec(&v)[1]) { v[0] = load_first(p, dim - d); });
}

// Half a vector of queries at most: each needs a pair of accumulators. All of them ask for what is ahead: requests that found
// the queue full are made again.
template <int kQueries, class T, class Ahead>
inline void weigh(const Shape& shape, const float* weights, const T* values, int64_t tokens, const Ahead& ahead,
                  float* acc) {
  for_even_parts<kQueries, Vec::width / 2>([&](auto first, auto size) {
    weigh_block<size>(shape, weights + first * kLogitStride, values, tokens, ahead, acc + first * shape.value_width);
  });
}

// The lines to ask for while a block is read. Its first strips meet all of its tokens, so that these have to be there
// before.
template <class T>
inline LinesAhead lines_behind(const T* block, const T* end, const T* last) {
  if (!kAskOnce) return {clamped_ahead_of(end, last)};
  // As near as they may be: the first-level cache has to hold this block, too.
  const char* ahead = reinterpret_cast<const char*>(block) + kPrefetchBytes;
  return {std::min(std::max(ahead, reinterpret_cast<const char*>(end)), reinterpret_cast<const char*>(last))};
}

// Calls body(weights, values, tokens, ahead) for blocks of values, read where they lie, that stay in the first-level cache.
template <int kQueries, class Kept, class T, class Body>
inline void for_value_blocks(Weights<kQueries, Kept>& weights, const T* values, int64_t dim, int64_t tokens,
                             const Body& body) {
  const T* last = values + tokens * dim - 1;
  const int64_t most = block_rows<T>(dim);
  for (int64_t t = 0; t < tokens; t += kWeightTokens) {
    const int64_t count = least(kWeightTokens, tokens - t);
    const float* taken = weights.take(t, count);
    for (int64_t i = 0; i < count; i += most) {
      const T* block = values + (t + i) * dim;
      const int64_t some = least(most, count - i);
      body(Kept::from(taken, i), block, some, lines_behind(block, block + some * dim, last));
    }
  }
}

// The same as weigh for values of any number.
template <int kQueries, class T>
inline void weigh_tokens(const Shape& shape, Weights<kQueries>& weights, const T* values, int64_t tokens, float* acc) {
  const int64_t row_bytes = shape.value_dim * static_cast<int64_t>(sizeof(T));
  for_value_blocks(weights, values, shape.value_dim, tokens,
                   [&](const float* taken, const T* block, int64_t count, const LinesAhead& ahead) {
                     with_requests<kQueries>(row_bytes, ahead, [&](const auto& lines) {
                       weigh<kQueries>(shape, taken, block, count, lines, acc);
                     });
                   });
}

}  // namespace
}  // namespace winnow
