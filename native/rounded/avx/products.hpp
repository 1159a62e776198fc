// Products of rows and panels in whole numbers, for AVX2 and AVX-512, which multiply twice as many of 16 bits at a time as of
// fp32.
#pragma once

#include <cstdint>

#include "rounded/avx/panel.hpp"
#include "rounded/sizes.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Adds the products of kTileInputs rows with blocks of a panel to sums [kTileInputs, kPanelOutputs], whose rows are `stride`
// apart. Sums of a block are whole numbers, which are scaled as fp32 numbers. numbers, scales: the panel's, as many blocks as
// are to be met. rows: these blocks of the first of the rows. Never inlined, where other numbers would crowd the registers.
[[maybe_unused, gnu::noinline]] void add_products(const RoundedRows& rows, int64_t blocks, const int16_t* numbers,
                                                  const float* scales, float* to, int64_t stride) {
  Vec sums[kTileInputs][kPanelVectors];
  unroll<kTileInputs>([&](auto r) __attribute__((always_inline)) {
    unroll<kPanelVectors>([&](auto v) __attribute__((always_inline)) {
      sums[r][v] = load(to + r * stride + v * Vec::width);
    });
  });
  const int64_t apart = rows.blocks * kRoundedTogether;
  for (int64_t block = 0; block < blocks; ++block, scales += kPanelOutputs) {
    const int16_t* inputs = rows.numbers + block * kRoundedTogether;
    Whole found[kTileInputs][kPanelVectors];
    unroll<kTileInputs>([&](auto r) __attribute__((always_inline)) {
      unroll<kPanelVectors>([&](auto v) __attribute__((always_inline)) { found[r][v] = no_whole(); });
    });
    for (int64_t i = 0; i < kRoundedTogether; i += 2, inputs += 2, numbers += 2 * kPanelOutputs) {
      Whole weights[kPanelVectors];
      unroll<kPanelVectors>([&](auto v) __attribute__((always_inline)) {
        weights[v] = load_pairs(numbers + 2 * v * Vec::width);
      });
      unroll<kTileInputs>([&](auto r) __attribute__((always_inline)) {
        const Whole pair = broadcast_pair(inputs + r * apart);
        unroll<kPanelVectors>([&](auto v) __attribute__((always_inline)) { add_pairs(found[r][v], pair, weights[v]); });
      });
    }
    unroll<kTileInputs>([&](auto r) __attribute__((always_inline)) {
      const Vec scale = broadcast(rows.scales[r * rows.blocks + block]);
      unroll<kPanelVectors>([&](auto v) __attribute__((always_inline)) {
        sums[r][v] = fma(to_fp32(found[r][v]), scale * load(scales + v * Vec::width), sums[r][v]);
      });
    });
  }
  unroll<kTileInputs>([&](auto r) __attribute__((always_inline)) {
    unroll<kPanelVectors>([&](auto v) __attribute__((always_inline)) {
      store(to + r * stride + v * Vec::width, sums[r][v]);
    });
  });
}

}  // namespace
}  // namespace winnow
