// Sums of a few rows, tile after tile.
#pragma once

#include <cstdint>
#include <cstring>

#include "linear/block.hpp"
#include "linear/contract.hpp"
#include "linear/inputs.hpp"
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

// Sums of rows for the outputs that a thread does at a time. Those of a part of a tile of rows lie together, a vector after
// another, each of as many outputs as fill it: that of row r and output o of kOutputs is lane r * kOutputs + o.
class LinearSums {
 public:
  explicit LinearSums(int64_t rows) {
    std::memset(sums_, 0, static_cast<size_t>(round_up(rows, kPartRows) * kOutputsAtOnce) * sizeof(float));
  }

  // Adds the products of a tile of kRows rows of inputs, from `first` on, with the outputs of a block.
  template <int kRows, class Channels, class W>
  void add(const CopiedInputs<Channels>& inputs, const WeightBlock<W>& block, int64_t first, const SharedAhead& shared) {
    float* to = sums_ + first * kOutputsAtOnce;
    if constexpr (kRows >= kManyAtOnce) {
      constexpr int kTogether = Vec::width / kPartRows;
      if constexpr (kShareRequests) {
        if (shared.output >= 0) return add_by<kRows, kTogether, true>(inputs, block, shared, to);
      }
      add_by<kRows, kTogether, false>(inputs, block, shared, to);
    } else {
      constexpr int kOutputs = Vec::width / kRows, kMost = kOutputs < kMostSideBySide ? kOutputs : kMostSideBySide;
      // On Zen 5 bytes take longer to be multiplied with a few rows than to come from memory.
      constexpr bool kMultiplied = kZenGeneration == 5 && kRows > 1 && sizeof(W) == 1;
      // Memory bounds the others, and gives short rows fastest in their order.
      const bool in_order = !kMultiplied && block.channels() == block.stride && block.row_bytes() < kLongRow;
      if (in_order) return add_by<kRows, 1, false>(inputs, block, shared, to);
      add_by<kRows, kMost, false>(inputs, block, shared, to);
    }
  }

  // Those of a row of a tile, in the order of outputs.
  template <int kRows>
  void copy_row(int64_t first, int64_t row, float* to) const {
    row < kPart<kRows> ? copy<kPart<kRows>>(first, row, to) : copy<kRest<kRows>>(first + kPartRows, row - kPartRows, to);
  }

 private:
  // Rows of a part of a tile at the most; those of the first, and of what may be left.
  static constexpr int kPartRows = 8;
  template <int kRows>
  static constexpr int kPart = kRows < kPartRows ? kRows : kPartRows;
  template <int kRows>
  static constexpr int kRest = kRows > kPartRows ? kRows - kPartRows : 1;

  // The same, with kTogether rows of the weight side by side. Never inlined, where other numbers would crowd the registers.
  // Vectors are added up one by one, as soon as they can be: a processor multiplies meanwhile.
  template <int kRows, int kTogether, bool kShared, class Channels, class W>
  [[gnu::noinline]] static void add_by(const CopiedInputs<Channels>& inputs, const WeightBlock<W>& block,
                                       const SharedAhead& shared, float* to) {
    constexpr int kFirst = kPart<kRows>, kOthers = kRows - kFirst, kOutputs = Vec::width / kFirst;
    constexpr int kTurns = kOthers > 0 ? kFirst / kOthers : 1;
    const int64_t group = kTogether * block.row_bytes();
    float* to_others = to + kFirst * kOutputsAtOnce;
    for (int64_t output = 0; output < block.outputs; to_others += Vec::width) {
      Vec others[Vec::width];
      unroll<kTurns>([&](auto turn) __attribute__((always_inline)) {
        Vec found[Vec::width];
        for (int o = 0; o < kOutputs; o += kTogether) {
          const W* weights[kTogether];
          block.point_at(output + o, weights);
          Vec sums[kRows * kTogether];
          multiply<kRows, kTogether, kShared, Channels>(inputs.numbers(), weights, block.channels(), group, shared, sums);
          unroll<kRows>([&](auto r) __attribute__((always_inline)) {
            unroll<kTogether>([&](auto i) __attribute__((always_inline)) {
              if constexpr (r < kFirst) {
                found[r * kOutputs + o + i] = sums[r * kTogether + i];
              } else {
                others[((r - kFirst) * kTurns + turn) * kOutputs + o + i] = sums[r * kTogether + i];
              }
            });
          });
        }
        store(to, load(to) + row_sums(found));
        to += Vec::width, output += kOutputs;
      });
      if constexpr (kOthers > 0) store(to_others, load(to_others) + row_sums(others));
    }
  }

  template <int kRows>
  void copy(int64_t first, int64_t row, float* to) const {
    constexpr int64_t kOutputs = Vec::width / kRows;
    const float* from = sums_ + first * kOutputsAtOnce + row * kOutputs;
    for (int64_t o = 0; o < kOutputsAtOnce; o += kOutputs, from += Vec::width) {
      std::memcpy(to + o, from, kOutputs * sizeof(float));
    }
  }

  alignas(64) float sums_[kMostTogether * kOutputsAtOnce];
};

}  // namespace
}  // namespace winnow
