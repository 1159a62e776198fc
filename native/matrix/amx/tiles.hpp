// How many rows and columns the tiles of a thread have.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace winnow {
namespace {

// GCC's intrinsics for tiles do not say that they read memory.
inline void finish_stores() { asm volatile("" ::: "memory"); }

// What a processor is told of them.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles of a thread, from here to the end of a scope: sums in the tiles 0 to 3, operands in the others.
class Tiles {
 public:
  // Rows of sums and of left operands, the tiles 4 and 5 (and 4 alone with `one_left`); columns of sums and of right
  // operands.
  explicit Tiles(uint8_t rows = 16, uint16_t columns = 16, bool one_left = false) {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) {
      const bool is_sum = tile < 4, is_left = tile == 4 || (tile == 5 && !one_left);
      config.rows[tile] = is_sum || is_left ? rows : 16;
      config.row_bytes[tile] = is_left ? 64 : static_cast<uint16_t>(4 * columns);
    }
    finish_stores();
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// Clears the sums of the first kTiles tiles, two or four.
template <int kTiles>
inline void zero_sums() {
  static_assert(kTiles == 2 || kTiles == 4);
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kTiles == 4) {
    _tile_zero(2);
    _tile_zero(3);
  }
}

// Sums in kTiles tiles, one under another: integers of 32 bits, or floats.
template <class Number, int kTiles>
struct TileSums {
  alignas(64) Number sums[kTiles][16][16];
};

template <class Number, int kTiles>
inline void store_sums(TileSums<Number, kTiles>& to) {
  static_assert(kTiles == 2 || kTiles == 4);
  _tile_stored(0, to.sums[0], 64);
  _tile_stored(1, to.sums[1], 64);
  if constexpr (kTiles == 4) {
    _tile_stored(2, to.sums[2], 64);
    _tile_stored(3, to.sums[3], 64);
  }
  finish_stores();
}

}  // namespace
}  // namespace winnow
