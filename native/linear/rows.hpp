// Rows of inputs, in tiles for which a line of the weight is read once.
#pragma once

#include <cstdint>

#include "simd/unroll.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Calls body(Count<size>) with the rows of a tile for so many, up to kMost: it may have room for more than these.
template <int kMost, class Body>
inline void with_tile(int64_t rows, const Body& body) {
  if (rows == 1) return body(Count<1>{});
  if constexpr (kMost > 2) {
    if (rows == 2) return body(Count<2>{});
    if (rows <= 4) return body(Count<4>{});
  }
  if constexpr (kMost > 8) {
    if (rows <= 8) return body(Count<8>{});
  }
  body(Count<kMost>{});
}

// Rows of each tile of so many. Where these are more than kMost, eight: their tiles make the best use of the processor, while
// larger ones spare it another look at the weight.
template <int kMost>
inline int64_t tile_rows(int64_t rows) {
  int64_t found = 8;
  if (rows <= kMost) with_tile<kMost>(rows, [&](auto size) { found = size; });
  return found;
}

// Calls body(tile, first, Count<size>) for all rows, `most` at a time; the last tile may have room for more than are left.
template <int kMost, class Body>
inline void for_row_tiles(int64_t rows, int64_t most, const Body& body) {
  for (int64_t tile = 0, first = 0; first < rows; ++tile, first += most) {
    with_tile<kMost>(least(most, rows - first), [&](auto size) { body(tile, first, size); });
  }
}

// Where the rows of a tile begin, whose first is given; the last that there is stands for those that there are not.
template <int kRows, class T>
inline void point_at_rows(const T* inputs, int64_t rows, int64_t stride, int64_t first, const T* (&at)[kRows]) {
  for (int r = 0; r < kRows; ++r) at[r] = inputs + least(first + r, rows - 1) * stride;
}

}  // namespace
}  // namespace winnow
