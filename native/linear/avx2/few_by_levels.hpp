// A linear layer of a few rows of 16 bits and a weight of 4 bits, for AVX2: levels are unpacked where they are multiplied.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "linear/avx2/level_inputs.hpp"
#include "linear/avx2/level_products.hpp"
#include "linear/avx2/nibbles.hpp"
#include "linear/contract.hpp"
#include "simd/avx2.hpp"
#include "simd/element.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Unpacking leaves 32 outputs in an order of its own: vector k has four from 4 k on, and four from 16 + 4 k on.

// Levels of two inputs, in pairs.
inline void unpack_pairs(const uint8_t* from, __m256i (&to)[kNibbleVectors]) {
  const __m256i first = spread_nibbles(from), second = spread_nibbles(from + kInputNibbles), zero = _mm256_setzero_si256();
  const __m256i low = _mm256_unpacklo_epi8(first, second), high = _mm256_unpackhi_epi8(first, second);
  to[0] = _mm256_unpacklo_epi8(low, zero);
  to[1] = _mm256_unpackhi_epi8(low, zero);
  to[2] = _mm256_unpacklo_epi8(high, zero);
  to[3] = _mm256_unpackhi_epi8(high, zero);
}

// Vectors of outputs after one another, as they are unpacked; and back.
inline void unpack_order(const Vec (&from)[kNibbleVectors], Vec (&to)[kNibbleVectors]) {
  for (int half = 0; half < 2; ++half) {
    to[2 * half] = {_mm256_permute2f128_ps(from[half].v, from[half + 2].v, 0x20)};
    to[2 * half + 1] = {_mm256_permute2f128_ps(from[half].v, from[half + 2].v, 0x31)};
  }
}
inline void pack_order(const Vec (&from)[kNibbleVectors], Vec (&to)[kNibbleVectors]) {
  for (int half = 0; half < 2; ++half) {
    to[half] = {_mm256_permute2f128_ps(from[2 * half].v, from[2 * half + 1].v, 0x20)};
    to[half + 2] = {_mm256_permute2f128_ps(from[2 * half].v, from[2 * half + 1].v, 0x31)};
  }
}

// Adds the products of a group of inputs of kRows rows to totals.
template <int kRows>
inline void add_group_of_few(const InputLevels<int16_t>* rows, int64_t of_block, const uint8_t* numbers,
                             const NibbleScales& of, Vec (&totals)[kRows][kNibbleVectors]) {
  __m256i sums[kRows][kNibbleVectors];
  for (auto& row : sums) {
    for (__m256i& sum : row) sum = _mm256_setzero_si256();
  }
  const int16_t* inputs = rows->numbers + of_block * WINNOW_SCALE_GROUP;
  constexpr int64_t kApart = sizeof(InputLevels<int16_t>) / sizeof(int16_t);
  for (int64_t input = 0; input < WINNOW_SCALE_GROUP; input += 4) {
    ask_ahead(numbers, input);
    unroll<2>([&](auto) __attribute__((always_inline)) {
      __m256i levels[kNibbleVectors];
      unpack_pairs(numbers, levels);
      unroll<kRows>([&](auto r) __attribute__((always_inline)) {
        const __m256i pair = broadcast_lane(inputs + r * kApart);
        unroll<kNibbleVectors>([&](auto v) __attribute__((always_inline)) {
          add_products(levels[v], pair, sums[r][v], int16_t{});
        });
      });
      numbers += 2 * kInputNibbles;
      inputs += 2;
    });
  }
  Vec scales[kNibbleVectors], least[kNibbleVectors];
  unpack_order(of.scales, scales);
  unpack_order(of.middles, least);
  unroll<kNibbleVectors>([&](auto v) __attribute__((always_inline)) { least[v] = least_of(scales[v], least[v]); });
  unroll<kRows>([&](auto r) __attribute__((always_inline)) {
    const RowCounts counts(rows[r], of_block);
    unroll<kNibbleVectors>([&](auto v) __attribute__((always_inline)) {
      totals[r][v] = counts.added(totals[r][v], to_outputs(sums[r][v], int16_t{}), scales[v], least[v]);
    });
  });
}

// Sums [kRows, kOutputsAtOnce] of the rows from `row` on, of the 32 outputs from `output` on. Never inlined, where other
// numbers would crowd the registers.
template <int kRows>
[[gnu::noinline]] void few_by_levels(const winnow_linear_layer& layer, const LevelRows<int16_t>& rows, int64_t row,
                                     int64_t output, float* to) {
  constexpr int64_t kGroups = InputLevels<int16_t>::kGroups;
  Vec totals[kRows][kNibbleVectors];
  for (auto& of_row : totals) {
    for (Vec& total : of_row) total = broadcast(0.0f);
  }
  NibbleGroups<Bf16> groups(layer, output);
  for (int64_t group = 0; group < layer.inputs / WINNOW_SCALE_GROUP; ++group, ++groups) {
    add_group_of_few(rows.at(row, group / kGroups), group % kGroups, groups.numbers, groups.ask_ahead(), totals);
  }
  for (int r = 0; r < kRows; ++r, to += kOutputsAtOnce) {
    Vec ordered[kNibbleVectors];
    pack_order(totals[r], ordered);
    for (int v = 0; v < kNibbleVectors; ++v) store(to + v * Vec::width, ordered[v]);
  }
}

}  // namespace
}  // namespace winnow
