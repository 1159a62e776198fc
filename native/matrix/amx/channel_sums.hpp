// Sums of 64 channels in four tiles: products of a tile of weights with tiles of values, a column of which is a channel.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <type_traits>

#include "matrix/amx/tiles.hpp"

namespace winnow {
namespace {

// Channels whose sums are in tiles together.
constexpr int64_t kSummedChannels = 64;

// Values of these channels, four tiles.
struct ValueTiles {
  alignas(64) uint8_t bytes[4][16][64];
};

// Adds the products of a tile of weights, whose rows are `row_bytes` apart, with values to the sums in the tiles 0 to 3.
// Weights are bf16, as values then are, or halves of int16, which meet bytes. Tiles have to be named by literals, which
// leaves products to be written out for either.
template <class Weight>
inline void multiply_values(const Weight* weights, int64_t row_bytes, const ValueTiles& values) {
  static_assert(std::is_same_v<Weight, uint16_t> || std::is_same_v<Weight, int8_t>);
  finish_stores();
  _tile_loadd(4, weights, row_bytes);
  _tile_loadd(5, values.bytes[0], 64);
  _tile_loadd(6, values.bytes[1], 64);
  _tile_loadd(7, values.bytes[2], 64);
  if constexpr (std::is_same_v<Weight, uint16_t>) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(5, values.bytes[3], 64);
    _tile_dpbf16ps(1, 4, 6);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 4, 5);
  } else {
    _tile_dpbsud(0, 4, 5);
    _tile_loadd(5, values.bytes[3], 64);
    _tile_dpbsud(1, 4, 6);
    _tile_dpbsud(2, 4, 7);
    _tile_dpbsud(3, 4, 5);
  }
}

}  // namespace
}  // namespace winnow
