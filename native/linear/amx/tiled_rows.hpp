// Rows of inputs as tiles: 16 rows, and of each as many inputs as a line holds.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "linear/contract.hpp"
#include "matrix/amx/sizes.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

constexpr int64_t kRowsOfTile = 16, kTileBytes = kRowsOfTile * kLine;

// Rows whose tiles of the same inputs lie beside each other, and which meet a weight together.
constexpr int64_t kRowsOfTwoTiles = 2 * kRowsOfTile;

constexpr int64_t input_blocks(const winnow_linear_layer& layer) { return divide_up(layer.inputs, kTileChannels); }

inline int64_t tiled_row_bytes(const winnow_linear_layer& layer) { return input_blocks(layer) * kLine; }

// Where the first tile begins of a row's block of inputs; that of the other rows is behind it.
inline char* tiles_at(const winnow_linear_layer& layer, const LaidInputs& laid, int64_t row, int64_t block) {
  return laid.memory + (row / kRowsOfTwoTiles * input_blocks(layer) + block) * 2 * kTileBytes;
}

// Inputs that there are not are zero.
inline void lay_row_in_tiles(const winnow_linear_layer& layer, const LinearRows& all, const LaidInputs& to, int64_t row) {
  const auto* from = static_cast<const Bf16*>(all.inputs) + row * layer.inputs;
  char* at = tiles_at(layer, to, row, 0) + row % kRowsOfTwoTiles * kLine;
  for (int64_t input = 0; input < layer.inputs; input += kTileChannels, at += 2 * kTileBytes) {
    const int64_t rest = layer.inputs - input;
    const __mmask32 there = rest >= kTileChannels ? ~__mmask32{0} : (__mmask32{1} << rest) - 1;
    _mm512_store_si512(at, _mm512_maskz_loadu_epi16(there, from + input));
  }
}

}  // namespace
}  // namespace winnow
