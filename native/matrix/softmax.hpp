// Softmax numerators of a block of tokens beside those of the blocks before it. Lanes are queries.
#pragma once

#include <cstdint>

#include "attend/contract.hpp"
#include "matrix/sizes.hpp"
#include "simd/math.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Products [tokens, lanes] of keys with one vector of queries -> exp(logit - max), in place and with the scales of
// values. `max` and `sum` take the block in; `factor` is what everything before the block is multiplied by.
inline void softmax_lanes(const Shape& shape, const MatrixScratch& matrix, float* logits, int64_t lanes, int64_t tokens,
                          Vec bias, float* max_at, float* sum_at, float* factor_at) {
  const bool capped = shape.softcap > 0.0f;
  const Vec before = load(max_at);
  const Vec size = broadcast(shape.softcap), inverse = broadcast(capped ? 1.0f / shape.softcap : 0.0f);
  Vec largest = before;
  for (int64_t t = 0; t < tokens; ++t) {
    Vec logit = fma(load(logits + t * lanes), broadcast(matrix.key_scales[t]), bias);
    if (capped) logit = size * tanh(logit * inverse);
    store(logits + t * lanes, logit);
    largest = max(largest, logit);
  }
  const Vec factor = exp(before - largest);
  Vec sum = factor * load(sum_at);
  for (int64_t t = 0; t < tokens; ++t) {
    const Vec weight = exp(load(logits + t * lanes) - largest);
    store(logits + t * lanes, weight * broadcast(matrix.value_scales[t]));
    sum = sum + weight;
  }
  store(max_at, largest);
  store(sum_at, sum);
  store(factor_at, factor);
}

}  // namespace
}  // namespace winnow
