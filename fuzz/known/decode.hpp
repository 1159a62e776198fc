// Decode attention whose result is known.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "bytes.hpp"
#include "known/attention.hpp"
#include "known/call.hpp"
#include "known/compare.hpp"
#include "winnow_native.h"

inline DecodeSizes sizes_of_rows(Bytes& from) {
  return {from.among(1, 3), from.among(1, 3), from.among(1, 8), from.coin() ? 1 : from.among(1, 70), from.below(3)};
}
inline DecodeSizes sizes_of_shared(Bytes& from) {
  return {from.among(2, 12), from.among(1, 2), from.among(1, 8), from.among(1, 5), from.among(1, 2)};
}

class KnownDecode : KnownCall {
 public:
  KnownDecode(Bytes& from, uint64_t seed, const DecodeSizes& sizes, bool shared) : KnownCall(from, seed, sizes) {
    add_parts(sizes.parts, shared);
    if (!shared && from_.below(3) == 0) add_ring();
    add_tail();
    add_queries();
  }

  // Runs the kernel. Throws Wrong where it did not find what it had to.
  void check() {
    expect(winnow_decode(&args_) == WINNOW_OK, "winnow_decode refused a problem that is right");
    Softmax softmax(args_.scaling, args_.softcap);
    const std::vector<double> expected = attended(softmax);
    double value = std::max(largest_of(tail_values_), largest_of(ring_values_));
    for (const Part& part : known_) value = std::max(value, largest_of(part.values));
    // In pairs, which are taken from whole vectors of channels.
    const bool rounds = rounds_weights(args_.dtype) && args_.value_dim % 32 == 0;
    const double rounding = rounds ? 2 * kRounding * value : 0;  // of numerators, and of what divides them
    const double error = error_of(softmax.largest(), value, args_.dtype) + rounding;
    expect_close(args_.dtype, args_.output, expected, error, "attention");
  }

 private:
  // [R, Q, H*G, Dv]
  std::vector<double> attended(Softmax& softmax) const {
    std::vector<double> output(static_cast<size_t>(args_.rows * args_.queries * query_heads() * args_.value_dim));
    double* next = output.data();
    for (int64_t row = 0; row < args_.rows; ++row) {
      for (int64_t token = 0; token < args_.queries; ++token) {
        for (int64_t head = 0; head < query_heads(); ++head, next += args_.value_dim) {
          const std::vector<Token> tokens = seen(row, head / args_.group_size, token);
          const float* sink = args_.sinks ? args_.sinks + head : nullptr;
          add_up(softmax.weights(query_at(row, head, token), tokens, args_.key_dim, sink), tokens, args_.value_dim, next);
        }
      }
    }
    return output;
  }
};

inline void check_decode(Bytes& from, uint64_t seed) { KnownDecode(from, seed, sizes_of_rows(from), false).check(); }
inline void check_shared(Bytes& from, uint64_t seed) { KnownDecode(from, seed, sizes_of_shared(from), true).check(); }
