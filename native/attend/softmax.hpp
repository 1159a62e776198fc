// Softmax numerators of logits.
#pragma once

#include "attend/contract.hpp"
#include "simd/math.hpp"
#include "simd/prefetch.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

struct RowSoftmax {
  float max;
  float sum;
};

inline void cap_logits(float* logits, int64_t tokens, float cap) {
  const Vec size = broadcast(cap), inverse = broadcast(1.0f / cap);
  for (int64_t t = 0; t < tokens; t += Vec::width) store(logits + t, size * tanh(load(logits + t) * inverse));
}

// Overwrites logits[tokens..) up to the next whole vector.
inline void fill_lanes(float* logits, int64_t tokens, float value) {
  alignas(64) static constexpr float kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const int64_t used = tokens % Vec::width;
  float* last = logits + tokens - used;
  if (used) store(last, if_less(load(kLanes), broadcast(static_cast<float>(used)), load(last), broadcast(value)));
}

// Replaces logits[0..visible) by exp(logit - max) and logits[visible..tokens) by zero; uses the padding
// behind the row. Nothing is read from memory meanwhile, so every vector also prefetches a line from `ahead` on.
inline RowSoftmax softmax_row(float* logits, int64_t visible, int64_t tokens, float softcap, const char* ahead) {
  const int64_t padded = round_up(visible, Vec::width);
  if (softcap > 0.0f) cap_logits(logits, padded, softcap);
  fill_lanes(logits, visible, kNoMax);

  Vec largest = broadcast(kNoMax);
  for (int64_t t = 0; t < padded; t += Vec::width) largest = max(largest, load(logits + t));
  const float row_max = lane_max(largest);

  const Vec shift = broadcast(row_max);
  Vec sum = broadcast(0.0f);
  for (int64_t t = 0; t < padded; t += Vec::width) {
    prefetch(ahead + t / Vec::width * kLine);
    const Vec weight = exp(load(logits + t) - shift);
    store(logits + t, weight);
    sum = sum + weight;
  }
  fill_lanes(logits, visible, 0.0f);
  for (int64_t t = padded; t < tokens; t += Vec::width) store(logits + t, broadcast(0.0f));
  return {row_max, visible > 0 ? lane_sum(sum) : 0.0f};
}

inline int64_t visible_tokens(const Shape& shape, const Chunk& chunk, int64_t query) {
  const int64_t visible = chunk.visible + shape.token_of(query);
  return visible < 0 ? 0 : least(visible, chunk.tokens);
}

// Logits of a block of queries -> weights, in place, with their maxima and sums.
template <int kQueries>
inline void softmax_block(const Shape& shape, const Chunk& chunk, float* logits, int64_t first, const void* values,
                          const void* last, const Partial& out) {
  for (int64_t i = 0; i < kQueries; ++i) {
    const int64_t query = first + i;
    const int64_t visible = query < shape.queries ? visible_tokens(shape, chunk, query) : 0;
    // The first values have been on their way since the last keys; every row asks for what lies behind.
    const char* next = static_cast<const char*>(values) + i * chunk.tokens / Vec::width * kLine;
    const RowSoftmax row = softmax_row(logits + i * kLogitStride, visible, chunk.tokens, shape.softcap,
                                       clamped_ahead_of(next, last));
    out.max[query] = row.max;
    out.sum[query] = row.sum;
  }
}

}  // namespace
}  // namespace winnow
