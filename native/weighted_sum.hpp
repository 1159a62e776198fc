// Sums of values under the weights of a few queries. Include after a vec_*.hpp.
#pragma once

#include "contract.hpp"
#include "prefetch.hpp"
#include "query_blocks.hpp"

namespace winnow {
namespace {

// acc[q][0..kStrips·width) += sum over t of weights[q][t]·values[t][..] for kQueries queries.
template <int kQueries, int kStrips, class T, class Load>
inline void weighted_tile(const float* weights, const T* values, int64_t dim, int64_t tokens, float* acc,
                          int64_t acc_width, const char* ahead, const Load& load_values) {
  Vec sums[kQueries][kStrips];
  for (int i = 0; i < kQueries; ++i) {
    for (int s = 0; s < kStrips; ++s) sums[i][s] = load(acc + i * acc_width + s * Vec::width);
  }
  constexpr int64_t kBytes = kStrips * Vec::width * static_cast<int64_t>(sizeof(T));
  for (int64_t t = 0; t < tokens; ++t) {
    const T* row = values + t * dim;
    for (int64_t b = 0; b < kBytes; b += kLine) prefetch(ahead + t * dim * static_cast<int64_t>(sizeof(T)) + b);
    Vec v[kStrips];
    for (int s = 0; s < kStrips; ++s) v[s] = load_values(row + s * Vec::width);
    for (int i = 0; i < kQueries; ++i) {
      const Vec w = broadcast(weights[i * kLogitStride + t]);
      for (int s = 0; s < kStrips; ++s) sums[i][s] = fma(w, v[s], sums[i][s]);
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    for (int s = 0; s < kStrips; ++s) store(acc + i * acc_width + s * Vec::width, sums[i][s]);
  }
}

// The same for all of the value dimension.
template <int kQueries, class T>
inline void weigh(const Shape& shape, const float* weights, const T* values, int64_t tokens, const char* ahead,
                  float* acc) {
  constexpr int kStrips = Vec::width / kQueries;  // as many accumulators as a vector has lanes
  constexpr int64_t kWide = kStrips * Vec::width;
  const int64_t dim = shape.value_dim;
  const auto whole = [](const T* p) { return load(p); };
  int64_t d = 0;
  for (; d + kWide <= dim; d += kWide) {
    weighted_tile<kQueries, kStrips>(weights, values + d, dim, tokens, acc + d, shape.value_width,
                                     ahead + d * static_cast<int64_t>(sizeof(T)), whole);
  }
  for (; d + Vec::width <= dim; d += Vec::width) {
    weighted_tile<kQueries, 1>(weights, values + d, dim, tokens, acc + d, shape.value_width,
                               ahead + d * static_cast<int64_t>(sizeof(T)), whole);
  }
  if (d < dim) {
    weighted_tile<kQueries, 1>(weights, values + d, dim, tokens, acc + d, shape.value_width, ahead,
                               [&](const T* p) { return load_first(p, dim - d); });
  }
}

}  // namespace
}  // namespace winnow
