// A linear layer of many rows in whole numbers, for AVX2 and AVX-512: a panel of outputs meets a few rows at a time, in
// registers.
//
// Sums of a block of inputs are whole numbers, which are scaled as fp32 numbers and added up. A part of a panel stays in the
// first-level cache while all rows of a block meet it, whose numbers are in the second.
#pragma once

#include <cstdint>
#include <cstring>

#include "linear/contract.hpp"
#include "linear/finish.hpp"
#include "rounded/avx/products.hpp"
#include "rounded/avx/rounding.hpp"
#include "rounded/sizes.hpp"
#include "simd/element.hpp"
#include "sizes.hpp"

#ifdef __AVX512F__
#include "linear/avx512/rounded_weight.hpp"
#else
#include "linear/avx2/rounded_weight.hpp"
#endif

namespace winnow {
namespace {

// Blocks of inputs of a part of a panel: 16 KB of weights.
constexpr int64_t kPartBlocks = (16 << 10) / (kPanelBlock * static_cast<int64_t>(sizeof(int16_t)));

// The weight of some outputs, panel after panel.
struct RoundedPanels {
  int64_t blocks;
  int16_t* numbers;  // [panels, blocks, kRoundedTogether / 2, kPanelOutputs, 2]
  float* scales;     // [panels, blocks, kPanelOutputs]

  int16_t* numbers_of(int64_t panel, int64_t block) const { return numbers + at(panel, block) * kPanelBlock; }
  float* scales_of(int64_t panel, int64_t block) const { return scales + at(panel, block) * kPanelOutputs; }

 private:
  int64_t at(int64_t panel, int64_t block) const { return panel * blocks + block; }
};

// First the numbers of all rows that are held, then the scales.
inline RoundedRows rows_in(const winnow_linear_layer& layer, const LaidInputs& rounded) {
  const int64_t blocks = rounded_blocks(layer);
  auto* numbers = reinterpret_cast<int16_t*>(rounded.memory);
  const RoundedRows all{blocks, numbers, reinterpret_cast<float*>(numbers + rounded.held * blocks * kRoundedTogether)};
  return all.from(rounded.first, 0);
}

inline int64_t rounded_row_bytes(const winnow_linear_layer& layer) {
  constexpr int64_t kBlockBytes = kRoundedTogether * sizeof(int16_t) + sizeof(float);
  return rounded_blocks(layer) * kBlockBytes;
}

template <class T>
inline void round_row(const winnow_linear_layer& layer, const LinearRows& all, const LaidInputs& inputs, int64_t row) {
  const RoundedRows rounded = rows_in(layer, inputs);
  const T* from = static_cast<const T*>(all.inputs) + row * layer.inputs;
  for (int64_t block = 0; block < rounded.blocks; ++block) {
    const RoundedRows to = rounded.from(row, block);
    const int64_t input = block * kRoundedTogether;
    round_inputs(from + input, layer.inputs - input, to.numbers, to.scales);
  }
}

// Outputs of rows in whole numbers, of inputs of type T.
template <class T>
class ManyRows {
 public:
  ManyRows(const winnow_linear_layer& layer, const LinearRows& all, const RoundedRows& rows, char* scratch)
      : layer_(layer), all_(all), rows_(rows) {
    panels_.blocks = rows.blocks;
    panels_.numbers = reinterpret_cast<int16_t*>(scratch);
    panels_.scales = reinterpret_cast<float*>(panels_.numbers + kOutputsAtOnce * rows.blocks * kRoundedTogether);
    sums_ = panels_.scales + kOutputsAtOnce * rows.blocks;
  }

  void run(int64_t first, int64_t last) {
    const int64_t panels = divide_up(last - first, kPanelOutputs);
    for (int64_t panel = 0; panel < panels; ++panel) round_panel(panel, first + panel * kPanelOutputs);
    for (int64_t row = 0; row < all_.count; row += kRowsTogether) {
      const int64_t rows = least(kRowsTogether, all_.count - row);
      add_up(row, rows, panels);
      for (int64_t r = 0; r < rows; ++r) finish<T>(layer_, sums_ + r * kOutputsAtOnce, nullptr, all_, row + r, first, last);
    }
  }

 private:
  void round_panel(int64_t panel, int64_t output) {
    for (int64_t block = 0; block < panels_.blocks; ++block) {
      const int64_t input = block * kRoundedTogether;
      round_weight<T>(layer_, input, output, panels_.numbers_of(panel, block), panels_.scales_of(panel, block));
    }
  }

  // Sums of the rows [row, row + rows). Behind the last there is what fills a tile; nobody reads its sums.
  void add_up(int64_t row, int64_t rows, int64_t panels) {
    std::memset(sums_, 0, static_cast<size_t>(kRowsTogether * kOutputsAtOnce) * sizeof(float));
    for (int64_t first = 0; first < panels_.blocks; first += kPartBlocks) {
      const int64_t last = least(first + kPartBlocks, panels_.blocks);
      for (int64_t panel = 0; panel < panels; ++panel) {
        for (int64_t r = 0; r < rows; r += kTileInputs) {
          add_products(rows_.from(row + r, first), last - first, panels_.numbers_of(panel, first),
                       panels_.scales_of(panel, first), sums_ + r * kOutputsAtOnce + panel * kPanelOutputs, kOutputsAtOnce);
        }
      }
    }
  }

  const winnow_linear_layer& layer_;
  const LinearRows& all_;
  const RoundedRows rows_;
  RoundedPanels panels_;
  float* sums_;  // [kRowsTogether, kOutputsAtOnce]
};

// Of the weight of kOutputsAtOnce outputs as whole numbers, with their scales, and of sums.
inline int64_t rounded_scratch_bytes(const winnow_linear_layer& layer, int64_t, int64_t) {
  return kOutputsAtOnce * (rounded_blocks(layer) * (2 * kRoundedTogether + 4) + 4 * kRowsTogether);
}

template <class T>
inline void rows_in_whole_numbers(const winnow_linear_layer& layer, const LinearRows& all, const LaidInputs& rounded,
                                  int64_t first, int64_t last, char* scratch) {
  ManyRows<T>(layer, all, rows_in(layer, rounded), scratch).run(first, last);
}

}  // namespace
}  // namespace winnow
