// Attention in double precision, with plain loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "winnow_native.h"

struct Token {
  const double* key;
  const double* value;
};

// How logits become weights, and how large the numbers were that went into them: errors of fp32 grow with these.
class Softmax {
 public:
  Softmax(float scaling, float softcap) : scaling_(scaling), softcap_(softcap) {}

  // What a query of `dim` channels pays every token; sink: a logit that takes its share, or null.
  std::vector<double> weights(const double* query, const std::vector<Token>& tokens, int64_t dim, const float* sink) {
    std::vector<double> logits;
    for (const Token& token : tokens) logits.push_back(logit(query, token.key, dim));
    double most = sink ? *sink : -INFINITY, sum = 0;
    for (double each : logits) most = std::max(most, each);
    if (sink) sum = std::exp(*sink - most);
    for (double& each : logits) sum += each = std::exp(each - most);
    for (double& each : logits) each /= sum;
    return logits;
  }

  // The largest product of the norms of a query and a key, scaled: no logit is larger.
  double largest() const { return largest_; }

 private:
  double logit(const double* query, const double* key, int64_t dim) {
    double product = 0, asked = 0, held = 0;
    for (int64_t d = 0; d < dim; ++d) {
      product += query[d] * key[d];
      asked += query[d] * query[d];
      held += key[d] * key[d];
    }
    largest_ = std::max(largest_, std::sqrt(asked * held) * std::fabs(scaling_));
    product *= scaling_;
    return softcap_ > 0 ? softcap_ * std::tanh(product / softcap_) : product;
  }

  double scaling_, softcap_, largest_ = 0;
};

// Values [value_dim] under the weights of a query.
inline void add_up(const std::vector<double>& weights, const std::vector<Token>& tokens, int64_t value_dim,
                   double* output) {
  for (int64_t d = 0; d < value_dim; ++d) output[d] = 0;
  for (size_t t = 0; t < tokens.size(); ++t) {
    for (int64_t d = 0; d < value_dim; ++d) output[d] += weights[t] * tokens[t].value[d];
  }
}

// The error of outputs before they are rounded, where no number of a value is above `value` and no logit above `logit`.
inline double error_of(double logit, double value, int32_t dtype) {
  // In 16-bit models instruction sets with products of int8 or bf16 cut queries and weights up.
  const bool whole = dtype == WINNOW_F32 || !std::strcmp(winnow_isa(), "portable") ||
                     !std::strcmp(winnow_isa(), "avx2") || !std::strcmp(winnow_isa(), "avx512");
  return (whole ? 2e-7 : 1e-5) * (1 + logit) * value;
}

// The largest relative error of a number rounded to bf16, and of a sum of such numbers.
constexpr double kRounding = 0x1p-8;

// True where they are rounded in models of a dtype.
inline bool rounds_weights(int32_t dtype) { return dtype == WINNOW_BF16 && !std::strncmp(winnow_isa(), "zen", 3); }

inline double largest_of(const std::vector<double>& numbers) {
  double most = 0;
  for (double each : numbers) most = std::max(most, std::fabs(each));
  return most;
}
