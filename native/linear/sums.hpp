// Sums of a few rows, tile after tile, and in the order of outputs in the end.
#pragma once

#include <cstdint>
#include <cstring>

#include "linear/block.hpp"
#include "linear/contract.hpp"
#include "linear/inputs.hpp"
#include "linear/rows.hpp"
#include "simd/processor.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Rows for which sums are kept: of more the weight is read again.
constexpr int64_t kMostTogether = 32;

// Rows of a weight that are read side by side at most, so that inputs are read once for all of them.
constexpr int kMostSideBySide = 4;

// Bytes of a row of a weight from which a few are read side by side. Two pages: with one row of inputs it crowds the
// first-level cache, and no hardware foresees its end; Zen 5's caches hold, and foresee, twice that. Processors with AVX2 alone
// wait for fewer lines of one row at a time.
constexpr int64_t kLongRow = kZenGeneration == 5 ? 16384 : Vec::width == 8 ? 2048 : 8192;

// Sums of `rows` rows for the outputs that a thread does at a time. Those of a block of rows lie together, a vector after
// another, each of as many outputs as fill it: that of row r and output o of kOutputs is lane r * kOutputs + o.
class LinearSums {
 public:
  explicit LinearSums(int64_t rows) : rows_(rows) {
    std::memset(sums_, 0, static_cast<size_t>(round_up(rows, kMostAtOnce) * kOutputsAtOnce) * sizeof(float));
  }

  // Adds the products of inputs, of the rows [first, first + kRows), with the outputs of a block.
  template <int kRows, class Channels, class W>
  void add(const CopiedInputs<Channels>& inputs, const WeightBlock<W>& block, int64_t first) {
    constexpr int kOutputs = Vec::width / kRows, kMost = kOutputs < kMostSideBySide ? kOutputs : kMostSideBySide;
    // On Zen 5 bytes take longer to be multiplied with a few rows than to come from memory.
    constexpr bool kMultiplied = kZenGeneration == 5 && kRows > 1 && sizeof(W) == 1;
    if constexpr (kRows <= 4 && !kMultiplied) {
      // Memory bounds these, and gives short rows fastest in their order.
      if (block.channels() == block.stride && block.row_bytes() < kLongRow) return add_by<kRows, 1>(inputs, block, first);
    }
    add_by<kRows, kMost>(inputs, block, first);
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
  // The same, with kTogether rows of the weight side by side. Never inlined, where other numbers would crowd the registers.
  template <int kRows, int kTogether, class Channels, class W>
  [[gnu::noinline]] void add_by(const CopiedInputs<Channels>& inputs, const WeightBlock<W>& block, int64_t first) {
    constexpr int kOutputs = Vec::width / kRows;
    const int64_t group = kTogether * block.row_bytes();
    float* to = sums_ + first * kOutputsAtOnce;
    for (int64_t output = 0; output < block.outputs; output += kOutputs, to += Vec::width) {
      Vec found[Vec::width];
      for (int o = 0; o < kOutputs; o += kTogether) {
        const W* weights[kTogether];
        block.point_at(output + o, weights);
        Vec sums[kRows * kTogether];
        multiply<kRows, kTogether, Channels>(inputs.numbers(), weights, block.channels(), group, sums);
        unroll<kRows>([&](auto r) __attribute__((always_inline)) {
          unroll<kTogether>([&](auto i) __attribute__((always_inline)) {
            found[r * kOutputs + o + i] = sums[r * kTogether + i];
          });
        });
      }
      store(to, load(to) + row_sums(found));
    }
  }

  int64_t rows_;
  alignas(64) float sums_[kMostTogether * kOutputsAtOnce];
};

}  // namespace
}  // namespace winnow
