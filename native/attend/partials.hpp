// Partial results: cleared, and merged by log-sum-exp.
#pragma once

#include <cstring>

#include "attend/contract.hpp"
#include "simd/math.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

inline void clear(const Shape& shape, const Partial& out) {
  for (int64_t query = 0; query < shape.stats_width(); query += Vec::width) {
    store(out.max + query, broadcast(kNoMax));
    store(out.sum + query, broadcast(0.0f));
  }
  std::memset(out.acc, 0, static_cast<size_t>(shape.acc_size()) * sizeof(float));
}

// Weights of all chunks relative to the overall maximum, and in inverse[q] the reciprocal of the softmax denominator;
// zero where query q sees nothing.
inline void weigh_chunks(const Shape& shape, const HeadPartials& head, float* inverse, int64_t first) {
  const int64_t stride = shape.stats_width();
  alignas(64) float sinks[Vec::width];
  for (int64_t i = 0; i < Vec::width; ++i) {
    sinks[i] = head.sinks ? head.sinks[shape.head_of(first + i)] : kNoMax;
  }
  Vec largest = load(sinks);
  for (int64_t c = 0; c < head.chunks; ++c) largest = max(largest, load(head.partials[c].max + first));

  const Vec zero = broadcast(0.0f), no_max = broadcast(kNoMax), sink = load(sinks);
  Vec denominator = if_less(no_max, sink, exp(sink - largest), zero);
  for (int64_t c = 0; c < head.chunks; ++c) {
    const Vec weight = exp(load(head.partials[c].max + first) - largest);
    store(head.weights + c * stride + first, weight);
    denominator = fma(weight, load(head.partials[c].sum + first), denominator);
  }
  store(inverse, if_less(zero, denominator, broadcast(1.0f) / denominator, zero));
}

// out[d] for d in one vector: sum over chunks of weight·acc[d], normalized.
inline Vec merge_lanes(const Shape& shape, const HeadPartials& head, int64_t query, int64_t d, float inverse) {
  const int64_t stride = shape.stats_width(), at = query * shape.value_width + d;
  Vec sum = broadcast(0.0f);
  for (int64_t c = 0; c < head.chunks; ++c) {
    sum = fma(broadcast(head.weights[c * stride + query]), load(head.partials[c].acc + at), sum);
  }
  return sum * broadcast(inverse);
}

template <class T>
inline void merge_query(const Shape& shape, const HeadPartials& head, int64_t query, float inverse, T* out) {
  const auto lanes = [&](int64_t d) { return merge_lanes(shape, head, query, d, inverse); };
  int64_t d = 0;
  for (; d + 2 * Vec::width <= shape.value_dim; d += 2 * Vec::width) {
    store_pair(out + d, lanes(d), lanes(d + Vec::width));
  }
  if (d + Vec::width <= shape.value_dim) {
    store(out + d, lanes(d));
    d += Vec::width;
  }
  if (d < shape.value_dim) store_first(out + d, lanes(d), shape.value_dim - d);
}

template <class T>
void merge(const Shape& shape, const HeadPartials& head, const Output& output) {
  alignas(64) float inverse[kQueryPad];
  for (int64_t query = 0; query < shape.queries; ++query) {
    const int64_t lane = query % Vec::width;
    if (lane == 0) weigh_chunks(shape, head, inverse, query);
    T* out = static_cast<T*>(output.data) + shape.token_of(query) * output.token_stride +
             shape.head_of(query) * shape.value_dim;
    merge_query(shape, head, query, inverse[lane], out);
  }
}

}  // namespace
}  // namespace winnow
