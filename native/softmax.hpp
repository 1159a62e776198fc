// Softmax numerators of one row of logits. Include after a vec_*.hpp and math.hpp.
#pragma once

#include "contract.hpp"
#include "math.hpp"

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

// Replaces logits[0..visible) by exp(logit - max) and logits[visible..tokens) by zero; uses the padding
// behind the row.
inline RowSoftmax softmax_row(float* logits, int64_t visible, int64_t tokens, float softcap) {
  const int64_t padded = round_up(visible, Vec::width);
  if (softcap > 0.0f) cap_logits(logits, padded, softcap);
  for (int64_t t = visible; t < padded; ++t) logits[t] = kNoMax;

  Vec largest = broadcast(kNoMax);
  for (int64_t t = 0; t < padded; t += Vec::width) largest = max(largest, load(logits + t));
  const float row_max = lane_max(largest);

  const Vec shift = broadcast(row_max);
  Vec sum = broadcast(0.0f);
  for (int64_t t = 0; t < padded; t += Vec::width) {
    const Vec weight = exp(load(logits + t) - shift);
    store(logits + t, weight);
    sum = sum + weight;
  }
  for (int64_t t = visible; t < round_up(tokens, Vec::width); ++t) logits[t] = 0.0f;
  return {row_max, visible > 0 ? lane_sum(sum) : 0.0f};
}

}  // namespace
}  // namespace winnow
