// Attention over a dense prompt whose result is known, with what every token was paid.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "bytes.hpp"
#include "known/attention.hpp"
#include "known/compare.hpp"
#include "known/numbers.hpp"
#include "winnow_native.h"

class KnownPrefill {
 public:
  KnownPrefill(Bytes& from, uint64_t seed) : from_(from), arrays_(seed) {
    args_.heads = from_.among(1, 3);
    args_.group_size = from_.among(1, 8);
    args_.tokens = from_.among(1, 200);
    args_.queries = from_.coin() ? args_.tokens : from_.among(1, args_.tokens);
    args_.window = from_.coin() ? 0 : from_.among(1, args_.tokens + 2);
    args_.key_dim = from_.coin() ? from_.among(1, 80) : 16 * from_.among(1, 6);
    args_.value_dim = from_.coin() ? args_.key_dim : from_.among(1, 80);
    args_.dtype = static_cast<int32_t>(from_.below(3));
    args_.threads = static_cast<int32_t>(from_.among(1, 3));
    args_.scaling = 0.125f;
    args_.softcap = from_.coin() ? 0.0f : 5.0f;
    if (from_.coin()) args_.sinks = static_cast<float*>(arrays_.numbers(WINNOW_F32, query_heads(), false));
    const Strides query = strides(query_heads(), args_.queries, args_.key_dim);
    const Strides key = strides(args_.heads, args_.tokens, args_.key_dim);
    const Strides value = strides(args_.heads, args_.tokens, args_.value_dim);
    args_.query_head_stride = query.head;
    args_.query_token_stride = query.token;
    args_.key_head_stride = key.head;
    args_.key_token_stride = key.token;
    args_.value_head_stride = value.head;
    args_.value_token_stride = value.token;
    // The output, what was paid, or both; values are not looked at without an output.
    const int64_t wanted = from_.below(3);
    args_.query = drawn(query, queries_);
    args_.keys = drawn(key, keys_);
    const void* values = drawn(value, values_);
    if (wanted != 1) {
      args_.values = values;
      args_.output = arrays_.zeros<char>(query_heads() * args_.queries * args_.value_dim * bytes_of(args_.dtype));
    }
    if (wanted != 2) args_.paid = arrays_.zeros<float>(args_.heads * args_.tokens);
  }

  // Runs the kernel. Throws Wrong where it did not find what it had to.
  void check() {
    expect(winnow_prefill(&args_) == WINNOW_OK, "winnow_prefill refused a problem that is right");
    Softmax softmax(args_.scaling, args_.softcap);
    std::vector<double> output(static_cast<size_t>(query_heads() * args_.queries * args_.value_dim));
    std::vector<double> paid(static_cast<size_t>(args_.heads * args_.tokens));
    attend(softmax, output, paid);
    const double logit = softmax.largest(), all = static_cast<double>(args_.queries);
    const double value = largest_of(values_), rounding = rounding_of_weights();
    // But for those weights, numbers are fp32 in every instruction set.
    const double error = error_of(logit, value, WINNOW_F32) + rounding * value;
    if (args_.output) expect_close(args_.dtype, args_.output, output, error, "a prompt");
    const double paid_error = error_of(logit, all, WINNOW_F32) + rounding * largest_of(paid);
    if (args_.paid) expect_close(WINNOW_F32, args_.paid, paid, paid_error, "what was paid");
  }

 private:
  // Where numbers of a head of a token begin, and how many there are in all.
  struct Strides {
    int64_t head, token, numbers;
  };

  int64_t query_heads() const { return args_.heads * args_.group_size; }

  // Tiles round numerators of the softmax to bf16, and the sum that they are divided by is one of such. Panels round less.
  double rounding_of_weights() const {
    const int64_t queries = args_.group_size * args_.queries;
    const int64_t window = args_.window < args_.tokens ? args_.window : 0;
    const bool laid = args_.dtype == WINNOW_BF16 && winnow_prefill_lays(args_.dtype, queries, window);
    return args_.output && (laid || rounds_weights(args_.dtype)) ? kRounding : 0;
  }

  Strides strides(int64_t heads, int64_t tokens, int64_t dim) {
    const int64_t gap = from_.below(5);
    Strides made{dim, heads * dim + gap, 0};
    if (from_.coin()) made = {tokens * (dim + gap), dim + gap, 0};
    made.numbers = (heads - 1) * made.head + (tokens - 1) * made.token + dim;
    return made;
  }

  const void* drawn(const Strides& strides, std::vector<double>& numbers) {
    const void* data = arrays_.numbers(args_.dtype, strides.numbers, false);
    numbers = numbers_at(args_.dtype, data, strides.numbers);
    return data;
  }

  void attend(Softmax& softmax, std::vector<double>& output, std::vector<double>& paid) const {
    for (int64_t head = 0; head < query_heads(); ++head) {
      const int64_t kv = head / args_.group_size;
      for (int64_t query = 0; query < args_.queries; ++query) {
        std::vector<Token> tokens;
        const int64_t own = args_.tokens - args_.queries + query;
        const int64_t first = args_.window ? std::max<int64_t>(0, own - args_.window + 1) : 0;
        for (int64_t t = first; t <= own; ++t) {
          tokens.push_back({keys_.data() + kv * args_.key_head_stride + t * args_.key_token_stride,
                            values_.data() + kv * args_.value_head_stride + t * args_.value_token_stride});
        }
        const double* asked = queries_.data() + head * args_.query_head_stride + query * args_.query_token_stride;
        const float* sink = args_.sinks ? args_.sinks + head : nullptr;
        const std::vector<double> weights = softmax.weights(asked, tokens, args_.key_dim, sink);
        add_up(weights, tokens, args_.value_dim, output.data() + (query * query_heads() + head) * args_.value_dim);
        for (size_t t = 0; t < weights.size(); ++t) {
          paid[static_cast<size_t>(kv * args_.tokens + first) + t] += weights[t] / static_cast<double>(args_.group_size);
        }
      }
    }
  }

  Bytes& from_;
  Arrays arrays_;
  winnow_prefill_args args_{};
  std::vector<double> queries_, keys_, values_;
};

inline void check_prefill(Bytes& from, uint64_t seed) { KnownPrefill(from, seed).check(); }
