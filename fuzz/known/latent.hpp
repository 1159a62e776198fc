// Decode attention of heads that share latents, whose result is known: every head's keys and values are made of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "bytes.hpp"
#include "known/attention.hpp"
#include "known/call.hpp"
#include "known/compare.hpp"
#include "known/numbers.hpp"
#include "winnow_native.h"

inline DecodeSizes sizes_of_latents(Bytes& from) {
  return {from.among(1, 4), 1, from.among(1, 20), from.coin() ? 1 : from.among(1, 30), from.among(0, 2)};
}

class KnownLatent : KnownCall {
 public:
  KnownLatent(Bytes& from, uint64_t seed, const DecodeSizes& sizes) : KnownCall(from, seed, sizes) {
    latent_.plain_dim = from_.among(1, 50);
    latent_.output_dim = from_.among(1, 50);
    args_.latent = &latent_;
    // Some matrices choose channels: their products are numbers of any dtype, and no rounding hides wrong logits.
    chooses_ = from_.coin();
    chooses_ ? choose_channels() : add_matrices();
    add_parts(sizes.parts, args_.rows > 1 && from_.coin());
    add_tail();
    add_queries();
  }

  // Runs the kernel. Throws Wrong where it did not find what it had to.
  void check() {
    expect(winnow_decode(&args_) == WINNOW_OK, "winnow_decode refused latents that are right");
    Softmax softmax(args_.scaling, args_.softcap);
    const std::vector<double> expected = attended(softmax);
    const double rounding = std::ldexp(1.0, -1 - mantissa_bits(args_.dtype));
    // Of what asks latents, of sums of these, and of weights of dense ones, twice: of numerators, and of what divides them.
    const double by_asking = std::expm1(2 * rounding * (chooses_ ? 0 : largest_logit_)) * largest_value_;
    const double by_weights = rounds_weights(args_.dtype) ? 2 * kRounding * largest_value_ : 0;
    const double logit = std::max(softmax.largest(), largest_logit_);
    const double error = error_of(logit, largest_sum_, args_.dtype) + by_asking + rounding * largest_sum_ + by_weights;
    // What is rounded was rounded before.
    expect_close(args_.dtype, args_.output, expected, 1.1 * error, "attention to latents");
  }

 private:
  int64_t rows_of_head() const { return latent_.plain_dim + latent_.output_dim; }
  int64_t matrix_rows() const { return args_.group_size * rows_of_head(); }

  // Rows of zeros but for a one: no two rows of a head's keys or of its values have it in the same channel, if they can.
  void choose_channels() {
    const int64_t dim = args_.key_dim, bytes = bytes_of(args_.dtype), first = from_.below(dim);
    const uint32_t one = args_.dtype == WINNOW_F32 ? 0x3f800000 : args_.dtype == WINNOW_BF16 ? 0x3f80 : 0x3c00;
    latent_.plain_dim = std::min(latent_.plain_dim, dim);
    latent_.bits = 16;
    matrices_.resize(static_cast<size_t>(matrix_rows() * dim));
    uint8_t* weight = arrays_.zeros<uint8_t>(matrix_rows() * dim * bytes);
    for (int64_t row = 0; row < matrix_rows(); ++row) {
      const int64_t at = row * dim + (first + row) % dim;
      for (int64_t i = 0; i < bytes; ++i) weight[at * bytes + i] = static_cast<uint8_t>(one >> (8 * i));
      matrices_[at] = 1;
    }
    latent_.weight = weight;
  }

  void add_matrices() {
    const int64_t dim = args_.key_dim, count = matrix_rows() * dim;
    latent_.bits = from_.coin() ? 16 : 8;
    if (latent_.bits == 16) {
      latent_.weight = arrays_.numbers(args_.dtype, count, false);
      matrices_ = numbers_at(args_.dtype, latent_.weight, count);
      return;
    }
    const uint8_t* levels = arrays_.noise(count);
    latent_.weight = levels;
    latent_.scales = numbers_of_size(arrays_, args_.dtype, matrix_rows(), -8);
    for (int64_t i = 0; i < count; ++i) {
      matrices_.push_back(number_at(args_.dtype, latent_.scales, i / dim) * static_cast<int8_t>(levels[i]));
    }
  }

  // A row of the matrices that a head has, first those of its keys.
  const double* matrix_row(int64_t head, int64_t row) const {
    return matrices_.data() + (head * rows_of_head() + row) * args_.key_dim;
  }

  // [R, Q, G, output_dim]
  std::vector<double> attended(Softmax& softmax) {
    const int64_t outputs = latent_.output_dim, heads = args_.group_size;
    std::vector<double> output(static_cast<size_t>(args_.rows * args_.queries * heads * outputs));
    for (int64_t row = 0; row < args_.rows; ++row) {
      const std::vector<Token> latents = seen(row, 0, args_.queries - 1);
      for (int64_t head = 0; head < heads; ++head) {
        make_tokens(head, latents);
        for (int64_t token = 0; token < args_.queries; ++token) {
          const double* query = query_at(row, head, token);
          note_logit(head, query, latents);
          // Later ones come last.
          const auto later = static_cast<std::ptrdiff_t>(args_.queries - 1 - token);
          const std::vector<Token> visible(made_.begin(), made_.end() - later);
          const float* sink = args_.sinks ? args_.sinks + head : nullptr;
          double* to = output.data() + ((row * args_.queries + token) * heads + head) * outputs;
          add_up(softmax.weights(query, visible, query_dim(), sink), visible, outputs, to);
        }
      }
    }
    return output;
  }

  // Keys and values that a head makes of latents, and their rotated channels.
  void make_tokens(int64_t head, const std::vector<Token>& latents) {
    const int64_t plain = latent_.plain_dim, width = query_dim() + latent_.output_dim;
    numbers_.assign(latents.size() * static_cast<size_t>(width), 0.0);
    made_.clear();
    double* next = numbers_.data();
    for (const Token& each : latents) {
      made_.push_back({next, next + query_dim()});
      for (int64_t i = 0; i < plain; ++i) *next++ = product(matrix_row(head, i), each.key);
      for (int64_t i = 0; i < args_.value_dim; ++i) *next++ = each.value[i];
      for (int64_t i = plain; i < rows_of_head(); ++i, ++next) {
        *next = product(matrix_row(head, i), each.key);
        largest_value_ = std::max(largest_value_, std::fabs(*next));
        largest_sum_ = std::max(largest_sum_, norm(matrix_row(head, i)) * norm(each.key));
      }
    }
  }

  // No product of latents with what asks them for a query is larger than that of their norms.
  void note_logit(int64_t head, const double* query, const std::vector<Token>& latents) {
    std::vector<double> asked(static_cast<size_t>(args_.key_dim));
    for (int64_t i = 0; i < latent_.plain_dim; ++i) {
      for (int64_t d = 0; d < args_.key_dim; ++d) asked[d] += query[i] * matrix_row(head, i)[d];
    }
    const double size = norm(asked.data()) * std::fabs(args_.scaling);
    for (const Token& each : latents) largest_logit_ = std::max(largest_logit_, size * norm(each.key));
  }

  double product(const double* a, const double* b) const {
    double sum = 0;
    for (int64_t d = 0; d < args_.key_dim; ++d) sum += a[d] * b[d];
    return sum;
  }
  double norm(const double* numbers) const { return std::sqrt(product(numbers, numbers)); }

  winnow_latent latent_{};
  bool chooses_ = false;
  std::vector<double> matrices_;  // [G, plain_dim + output_dim, D]
  std::vector<double> numbers_;   // of the tokens of a head
  std::vector<Token> made_;
  double largest_logit_ = 0, largest_value_ = 0, largest_sum_ = 0;
};

inline void check_latent(Bytes& from, uint64_t seed) { KnownLatent(from, seed, sizes_of_latents(from)).check(); }
