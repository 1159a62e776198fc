// Sums of a few rows, tile after tile, and in the order of outputs in the end.
#pragma once

#include <cstdint>
#include <cstring>

#include "linear/block.hpp"
#include "linear/contract.hpp"
#include "linear/rows.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Rows for which sums are kept: of more the weight is read again.
constexpr int64_t kMostTogether = 32;

// Sums of `rows` rows for the outputs that a thread does at a time. Those of a block of rows lie together, a vector after
// another, each of as many outputs as fill it: that of row r and output o of kOutputs is lane r * kOutputs + o.
class LinearSums {
 public:
  explicit LinearSums(int64_t rows) : rows_(rows) {
    std::memset(sums_, 0, static_cast<size_t>(round_up(rows, kMostAtOnce) * kOutputsAtOnce) * sizeof(float));
  }

  // Adds the products of the block's rows [first, first + kRows) with the outputs [output, output + Vec::width).
  template <int kRows, class T, class W>
  void add(const ChannelBlock<T, W>& block, int64_t first, int64_t output) {
    constexpr int kOutputs = Vec::width / kRows;
    const T* inputs[kRows];
    point_at_rows(block.inputs, block.rows, block.stride, first, inputs);
    float* to = sums_ + first * kOutputsAtOnce + output * kRows;
    for (int part = 0; part < kRows; ++part, output += kOutputs, to += Vec::width) {
      Vec found[Vec::width];
      for (int o = 0; o < kOutputs; ++o) {
        Vec sums[kRows];
        // Where there are fewer the last output is repeated.
        multiply(block, inputs, block.weight + least(output + o, block.outputs - 1) * block.stride, sums);
        unroll<kRows>([&](auto r) __attribute__((always_inline)) { found[r * kOutputs + o] = sums[r]; });
      }
      store(to, load(to) + row_sums(found));
    }
  }

  // Those of a row, in the order of outputs.
  void copy_row(int64_t row, float* to) const {
    for_row_blocks<kMostAtOnce>(rows_, [&](int64_t first, auto size) {
      if (row < first || row >= first + size) return;
      constexpr int kOutputs = Vec::width / size;
      const float* from = sums_ + first * kOutputsAtOnce + (row - first) * kOutputs;
      for (int64_t o = 0; o < kOutputsAtOnce; o += kOutputs, from += Vec::width) {
        std::memcpy(to + o, from, kOutputs * sizeof(float));
      }
    });
  }

 private:
  int64_t rows_;
  alignas(64) float sums_[kMostTogether * kOutputsAtOnce];
};

}  // namespace
}  // namespace winnow
