// Softmax numerators of a block of tokens beside those of the blocks before it. Lanes are queries.
#pragma once

#include <cstdint>

#include "attend/contract.hpp"
#include "matrix/sizes.hpp"
#include "simd/math.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// What soft-capping makes of logits.
class Cap {
 public:
  explicit Cap(const Shape& shape)
      : size_(broadcast(shape.softcap)), inverse_(broadcast(1.0f / shape.softcap)), caps_(shape.softcap > 0.0f) {}

  Vec operator()(Vec logit) const { return caps_ ? size_ * tanh(logit * inverse_) : logit; }

 private:
  Vec size_, inverse_;
  bool caps_;
};

// In the place of the logit of a token that a query does not see.
constexpr float kUnseenLogit = 2.0f * kNoMax;

// logit_of(t), a logit of every lane, for `tokens` tokens -> exp(logit - max) times the token's scale, `lanes` floats apart.
// `max` and `sum` take the block in; `factor` is what everything before the block is multiplied by.
template <class LogitOf>
inline void softmax_lanes(int64_t tokens, const LogitOf& logit_of, const float* scales, float* weights, int64_t lanes,
                          float* max_at, float* sum_at, float* factor_at) {
  const Vec before = load(max_at);
  Vec largest = before;
  for (int64_t t = 0; t < tokens; ++t) {
    const Vec logit = logit_of(t);
    store(weights + t * lanes, logit);
    largest = max(largest, logit);
  }
  const Vec factor = exp(before - largest);
  Vec sum = factor * load(sum_at);
  for (int64_t t = 0; t < tokens; ++t) {
    const Vec logit = load(weights + t * lanes);
    const Vec weight = if_less(logit, broadcast(kNoMax), broadcast(0.0f), exp(logit - largest));
    store(weights + t * lanes, weight * broadcast(scales[t]));
    sum = sum + weight;
  }
  store(max_at, largest);
  store(sum_at, sum);
  store(factor_at, factor);
}

}  // namespace
}  // namespace winnow
