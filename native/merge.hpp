// Merging partial results by log-sum-exp. Include after a vec_*.hpp and math.hpp.
#pragma once

#include "contract.hpp"
#include "math.hpp"

namespace winnow {
namespace {

// Turns the maxima of all chunks into weights relative to the overall maximum, and returns in inverse[q] the
// reciprocal of the softmax denominator; zero where query q sees nothing.
inline void weigh_chunks(const Shape& shape, const Group& group, float* inverse, int64_t first) {
  const int64_t stride = shape.stats_width();
  alignas(64) float sinks[Vec::width];
  for (int64_t i = 0; i < Vec::width; ++i) {
    sinks[i] = group.sinks ? group.sinks[(first + i) % shape.group] : kNoMax;
  }
  Vec largest = load(sinks);
  for (int64_t c = 0; c < group.chunks; ++c) largest = max(largest, load(group.max + c * stride + first));

  const Vec zero = broadcast(0.0f), no_max = broadcast(kNoMax), sink = load(sinks);
  Vec denominator = if_less(no_max, sink, exp(sink - largest), zero);
  for (int64_t c = 0; c < group.chunks; ++c) {
    float* at = group.max + c * stride + first;
    const Vec weight = exp(load(at) - largest);
    store(at, weight);
    denominator = fma(weight, load(group.sum + c * stride + first), denominator);
  }
  store(inverse, if_less(zero, denominator, broadcast(1.0f) / denominator, zero));
}

// out[d] for d in one vector: sum over chunks of weight·acc[d], normalised.
inline Vec merge_lanes(const Shape& shape, const Group& group, int64_t query, int64_t d, float inverse) {
  const int64_t stride = shape.stats_width();
  const float* acc = group.acc + query * shape.value_width + d;
  Vec sum = broadcast(0.0f);
  for (int64_t c = 0; c < group.chunks; ++c) {
    sum = fma(broadcast(group.max[c * stride + query]), load(acc + c * shape.acc_size()), sum);
  }
  return sum * broadcast(inverse);
}

template <class T>
void merge(const Shape& shape, const Group& group, const Output& output) {
  alignas(64) float inverse[kQueryPad];
  for (int64_t query = 0; query < shape.queries; ++query) {
    const int64_t lane = query % Vec::width;
    if (lane == 0) weigh_chunks(shape, group, inverse, query);
    T* out = static_cast<T*>(output.data) + query / shape.group * output.token_stride +
             query % shape.group * shape.value_dim;
    int64_t d = 0;
    for (; d + Vec::width <= shape.value_dim; d += Vec::width) {
      store(out + d, merge_lanes(shape, group, query, d, inverse[lane]));
    }
    if (d < shape.value_dim) {
      store_first(out + d, merge_lanes(shape, group, query, d, inverse[lane]), shape.value_dim - d);
    }
  }
}

}  // namespace
}  // namespace winnow
