// A linear layer of many rows and a weight in bf16, in pairs, for AVX-512 BF16: a panel of the weight meets a few rows at a
// time, in registers. It is laid anew where it is multiplied, in the first-level cache and the second, and nothing is written
// out.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "linear/avx512/ahead.hpp"
#include "linear/avx512/pair_panel.hpp"
#include "linear/contract.hpp"
#include "linear/finish.hpp"
#include "simd/avx512/pairs.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Rows whose sums are in registers, beside the vectors of two inputs and a pair of a row.
constexpr int kPairedRows = 6;

// Pairs of a line of a row.
constexpr int64_t kLinePairs = kLine / (2 * static_cast<int64_t>(sizeof(Bf16)));

// What is read after a tile: the rows of another one, and a part of the weight.
struct TileAhead {
  RowsAhead inputs, weight;
};

// Adds the products of kRows rows, `stride` numbers apart, with `pairs` pairs of inputs of a panel to sums
// [kRows, kOutputsAtOnce]. Never inlined, where other numbers would crowd the registers.
template <int kRows>
[[gnu::noinline]] void add_pairs(const Bf16* inputs, int64_t stride, const PairPanel& panel, int64_t pairs,
                                 const TileAhead& ahead, float* to) {
  __m512 sums[kRows][kPairVectors];
  unroll<kRows>([&](auto r) __attribute__((always_inline)) {
    unroll<kPairVectors>([&](auto v) __attribute__((always_inline)) {
      sums[r][v] = load(to + r * kOutputsAtOnce + v * Vec::width).v;
    });
  });
  for (int64_t first = 0; first < pairs; first += kLinePairs) {
    ahead.inputs.ask<3>(first * 2 * static_cast<int64_t>(sizeof(Bf16)));
    ahead.weight.ask<2>(first * 2 * static_cast<int64_t>(sizeof(Bf16)));
    const int64_t last = least(first + kLinePairs, pairs);
    for (int64_t pair = first; pair < last; ++pair, inputs += 2) {
      __m512i weights[kPairVectors];
      unroll<kPairVectors>([&](auto v) __attribute__((always_inline)) { weights[v] = panel[pair][v]; });
      unroll<kRows>([&](auto r) __attribute__((always_inline)) {
        const __m512i input = broadcast_four(inputs + r * stride);
        unroll<kPairVectors>([&](auto v) __attribute__((always_inline)) {
          sums[r][v] = Bf16Pairs::add(sums[r][v], weights[v], input);
        });
      });
    }
  }
  unroll<kRows>([&](auto r) __attribute__((always_inline)) {
    unroll<kPairVectors>([&](auto v) __attribute__((always_inline)) {
      store(to + r * kOutputsAtOnce + v * Vec::width, {sums[r][v]});
    });
  });
}

// Memory of a thread: a panel, and sums of rows.
struct PairScratch {
  alignas(kLine) PairPanel panel;
  float sums[1][kOutputsAtOnce];  // as many as there are rows
};

inline int64_t paired_scratch_bytes(const winnow_linear_layer&, int64_t rows, int64_t) {
  return static_cast<int64_t>(sizeof(PairPanel)) + rows * kOutputsAtOnce * static_cast<int64_t>(sizeof(float));
}

// Outputs from `first` to `last` of some rows.
class PairedRows {
 public:
  PairedRows(const winnow_linear_layer& layer, const LinearRows& all, char* scratch)
      : layer_(layer), all_(all), scratch_(*reinterpret_cast<PairScratch*>(scratch)) {}

  void run(int64_t first, int64_t last) {
    std::memset(scratch_.sums, 0, static_cast<size_t>(all_.count) * sizeof scratch_.sums[0]);
    for (int64_t input = 0; input < layer_.inputs; input += kPanelInputs) {
      const int64_t end = least(input + kPanelInputs, layer_.inputs);
      lay_pairs(layer_, input, end, first, scratch_.panel);
      multiply(input, end, end < layer_.inputs ? weight_at(first, end) : weight_at(last, 0));
    }
    finish_rows<Bf16>(layer_, scratch_.sums, nullptr, all_, first, last);
  }

 private:
  // Where the weight is read next.
  RowsAhead weight_at(int64_t output, int64_t input) const {
    if (output >= layer_.outputs) return {nullptr, 0, 0};
    constexpr auto kBytes = static_cast<int64_t>(sizeof(Bf16));
    return {static_cast<const char*>(layer_.weight) + (output * layer_.inputs + input) * kBytes, layer_.inputs * kBytes,
            least(kOutputsAtOnce, layer_.outputs - output)};
  }

  const Bf16* row(int64_t row, int64_t input) const {
    return static_cast<const Bf16*>(all_.inputs) + row * layer_.inputs + input;
  }

  // Products of all rows with the panel, in tiles that are as even as they can be.
  void multiply(int64_t input, int64_t end, const RowsAhead& weight) {
    const int64_t tiles = divide_up(all_.count, kPairedRows), share = divide_up(weight.count, tiles);
    const int64_t pairs = (end - input) / 2, stride = layer_.inputs * static_cast<int64_t>(sizeof(Bf16));
    for (int64_t tile = 0, first = 0; tile < tiles; ++tile) {
      const int64_t last = (tile + 1) * all_.count / tiles, asked = least(tile * share, weight.count);
      const TileAhead ahead = {
          {reinterpret_cast<const char*>(tile + 1 < tiles ? row(last, input) : row(0, end)), stride, last - first},
          {weight.first + asked * weight.stride, weight.stride, least(share, weight.count - asked)}};
      add(last - first, row(first, input), pairs, ahead, scratch_.sums[first]);
      first = last;
    }
  }

  void add(int64_t rows, const Bf16* inputs, int64_t pairs, const TileAhead& ahead, float* to) {
    static_assert(kPairedRows == 6);
    const PairPanel& panel = scratch_.panel;
    switch (rows) {
      case 6: return add_pairs<6>(inputs, layer_.inputs, panel, pairs, ahead, to);
      case 5: return add_pairs<5>(inputs, layer_.inputs, panel, pairs, ahead, to);
      case 4: return add_pairs<4>(inputs, layer_.inputs, panel, pairs, ahead, to);
      case 3: return add_pairs<3>(inputs, layer_.inputs, panel, pairs, ahead, to);
      case 2: return add_pairs<2>(inputs, layer_.inputs, panel, pairs, ahead, to);
      default: return add_pairs<1>(inputs, layer_.inputs, panel, pairs, ahead, to);
    }
  }

  const winnow_linear_layer& layer_;
  const LinearRows& all_;
  PairScratch& scratch_;
};

inline void paired_rows(const winnow_linear_layer& layer, const LinearRows& all, const LaidInputs&, int64_t first,
                        int64_t last, char* scratch) {
  PairedRows(layer, all, scratch).run(first, last);
}

}  // namespace
}  // namespace winnow
