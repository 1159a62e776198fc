// A linear layer and a weight of 4 bits, for AVX2: levels are multiplied as they are, and sums of inputs that share a scale
// are whole numbers, which are scaled as fp32 numbers.
//
// Up to 32 rows are whole numbers of 16 bits, and more are bytes, of which twice as many are multiplied at a time: their sums
// of a group of inputs fit into 16 bits. A panel of the weight meets a few rows at a time, in registers. All panels of a part
// of the inputs are in the first-level cache meanwhile, so that each row comes from the second once.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "linear/avx2/few_by_levels.hpp"
#include "linear/avx2/level_inputs.hpp"
#include "linear/avx2/level_panel.hpp"
#include "linear/avx2/level_products.hpp"
#include "linear/contract.hpp"
#include "linear/finish.hpp"
#include "rounded/avx/panel.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Rows that meet levels as these are unpacked; that are whole numbers of 16 bits: more are bytes.
constexpr int64_t kMostUnpacked = 4, kMostOf16Bits = 32;

// Adds the products of a group of a panel with those of kRows rows to sums [kRows, kOutputsAtOnce].
template <int kRows, class N>
__attribute__((always_inline)) inline void add_group(const InputLevels<N>* rows, int64_t of_block,
                                                     const LevelGroup<N>& group, float* to) {
  __m256i sums[kRows][kPanelVectors];
  unroll<LevelGroup<N>::kSteps>([&](auto step) __attribute__((always_inline)) {
    __m256i levels[kPanelVectors];
    unroll<kPanelVectors>([&](auto v) __attribute__((always_inline)) {
      levels[v] = group.levels[step][v];
      asm("" : "+x"(levels[v]));  // read once, not for every row
    });
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      const __m256i inputs = broadcast_lane(rows[r].numbers + of_block * WINNOW_SCALE_GROUP + step * kInLane<N>);
      unroll<kPanelVectors>([&](auto v) __attribute__((always_inline)) {
        if constexpr (step == 0) {
          sums[r][v] = products(levels[v], inputs, N{});
        } else {
          add_products(levels[v], inputs, sums[r][v], N{});
        }
      });
    });
  });
  unroll<kRows>([&](auto r) __attribute__((always_inline)) {
    const RowCounts counts(rows[r], of_block);
    unroll<kPanelVectors>([&](auto v) __attribute__((always_inline)) {
      float* sum = to + r * kOutputsAtOnce + v * Vec::width;
      store(sum, counts.added(load(sum), to_outputs(sums[r][v], N{}), group.scales[v], group.least[v]));
    });
  });
}

// Memory of a thread: panels of all outputs that it does at a time, and sums of rows.
template <class N>
struct LevelScratch {
  static constexpr int64_t kPairs = kOutputsAtOnce / kNibbleOutputs;

  alignas(kLine) LevelPanel<N> panels[kPairs][2];
  float sums[1][kOutputsAtOnce];  // as many as there are rows
};

template <class N>
inline int64_t level_scratch_bytes(const winnow_linear_layer&, int64_t rows, int64_t) {
  return static_cast<int64_t>(sizeof(LevelScratch<N>)) + rows * kOutputsAtOnce * static_cast<int64_t>(sizeof(float));
}

// Outputs from `first` to `last` of some rows.
template <class N>
class RowsByLevels {
 public:
  RowsByLevels(const winnow_linear_layer& layer, const LinearRows& all, const LaidInputs& rounded, char* scratch)
      : layer_(layer), all_(all), rows_(rounded), scratch_(*reinterpret_cast<LevelScratch<N>*>(scratch)) {}

  void run(int64_t first, int64_t last) {
    sum_up(first, last);
    finish_rows<Bf16>(layer_, scratch_.sums, nullptr, all_, first, last);
  }

 private:
  void sum_up(int64_t first, int64_t last) {
    if constexpr (sizeof(N) == 2) {
      if (all_.count <= kMostUnpacked) return sum_few(first, last);
    }
    std::memset(scratch_.sums, 0, static_cast<size_t>(all_.count) * sizeof scratch_.sums[0]);
    for (int64_t input = 0; input < layer_.inputs; input += kLevelInputs) {
      const int64_t end = least(input + kLevelInputs, layer_.inputs);
      for (int64_t o = first; o < last; o += kNibbleOutputs) {
        lay_levels<N>(layer_, input, end, o, scratch_.panels[(o - first) / kNibbleOutputs]);
      }
      multiply(input / kRoundedTogether, (end - input) / WINNOW_SCALE_GROUP, last - first);
    }
  }

  // In parts of up to three rows, as even as they can be.
  void sum_few(int64_t first, int64_t last) {
    const int64_t parts = divide_up(all_.count, 3);
    for (int64_t part = 0, row = 0; part < parts; ++part) {
      const int64_t end = (part + 1) * all_.count / parts;
      for (int64_t o = 0; o < last - first; o += kNibbleOutputs) sum_few(end - row, row, first + o, scratch_.sums[row] + o);
      row = end;
    }
  }
  void sum_few(int64_t rows, int64_t row, int64_t output, float* to) {
    switch (rows) {
      case 3: return few_by_levels<3>(layer_, rows_, row, output, to);
      case 2: return few_by_levels<2>(layer_, rows_, row, output, to);
      default: return few_by_levels<1>(layer_, rows_, row, output, to);
    }
  }

  static constexpr int64_t kGroups = InputLevels<N>::kGroups;

  // Products of all rows, from a block on, with so many groups of the panels, in tiles that are as even as they can be.
  void multiply(int64_t block, int64_t groups, int64_t outputs) {
    const int64_t tiles = divide_up(all_.count, kTileInputs);
    for (int64_t tile = 0, row = 0; tile < tiles; ++tile) {
      const int64_t end = (tile + 1) * all_.count / tiles;
      ask_ahead(end, block, groups);
      for (int64_t o = 0; o < outputs; o += kPanelOutputs) {
        const auto& panel = scratch_.panels[o / kNibbleOutputs][o / kPanelOutputs % 2];
        add(end - row, row, block, groups, panel, scratch_.sums[row] + o);
      }
      row = end;
    }
  }

  // Asks for what the next tile meets: it lies too far apart, a few lines together, to be foreseen.
  void ask_ahead(int64_t row, int64_t block, int64_t groups) const {
    for (int64_t group = 0; group < groups; group += kGroups, ++block) {
      prefetch_span<kTileInputs * sizeof(InputLevels<N>), false>(reinterpret_cast<const char*>(rows_.at(row, block)));
    }
  }

  void add(int64_t rows, int64_t row, int64_t block, int64_t groups, const LevelPanel<N>& panel, float* to) const {
    static_assert(kTileInputs == 6);
    switch (rows) {
      case 6: return add_groups<6>(row, block, groups, panel, to);
      case 5: return add_groups<5>(row, block, groups, panel, to);
      case 4: return add_groups<4>(row, block, groups, panel, to);
      case 3: return add_groups<3>(row, block, groups, panel, to);
      case 2: return add_groups<2>(row, block, groups, panel, to);
      default: return add_groups<1>(row, block, groups, panel, to);
    }
  }

  // Never inlined, where other numbers would crowd the registers.
  template <int kRows>
  [[gnu::noinline]] void add_groups(int64_t row, int64_t block, int64_t groups, const LevelPanel<N>& panel, float* to) const {
    for (int64_t group = 0; group < groups; ++group) {
      add_group<kRows>(rows_.at(row, block + group / kGroups), group % kGroups, panel[group], to);
    }
  }

  const winnow_linear_layer& layer_;
  const LinearRows& all_;
  const LevelRows<N> rows_;
  LevelScratch<N>& scratch_;
};

template <class N>
inline void rows_by_levels(const winnow_linear_layer& layer, const LinearRows& all, const LaidInputs& rounded, int64_t first,
                           int64_t last, char* scratch) {
  RowsByLevels<N>(layer, all, rounded, scratch).run(first, last);
}

}  // namespace
}  // namespace winnow
