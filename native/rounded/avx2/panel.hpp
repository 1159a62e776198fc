// The shape of what is multiplied at a time with AVX2, and rows that become columns.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "rounded/sizes.hpp"
#include "simd/avx2.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Sums of so many rows with a panel of outputs are in registers, beside two vectors of weights, an input and a product.
constexpr int kTileInputs = 6, kPanelVectors = 2;
constexpr int64_t kPanelOutputs = kPanelVectors * Vec::width;

// Numbers of a block of a panel.
constexpr int64_t kPanelBlock = kRoundedTogether * kPanelOutputs;

// Lane j of row i becomes lane i of row j.
inline void transpose(Vec (&rows)[8]) {
  Vec pairs[8], fours[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = {_mm256_unpacklo_ps(rows[i].v, rows[i + 1].v)};
    pairs[i + 1] = {_mm256_unpackhi_ps(rows[i].v, rows[i + 1].v)};
  }
  for (int i = 0; i < 8; i += 4) {
    for (int half = 0; half < 2; ++half) {
      fours[i + 2 * half] = {_mm256_shuffle_ps(pairs[i + half].v, pairs[i + half + 2].v, 0x44)};
      fours[i + 2 * half + 1] = {_mm256_shuffle_ps(pairs[i + half].v, pairs[i + half + 2].v, 0xee)};
    }
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = {_mm256_permute2f128_ps(fours[i].v, fours[i + 4].v, 0x20)};
    rows[i + 4] = {_mm256_permute2f128_ps(fours[i].v, fours[i + 4].v, 0x31)};
  }
}

}  // namespace
}  // namespace winnow
