// Rows of inputs, in blocks for which a line of the weight is read once.
#pragma once

#include <cstdint>

#include "simd/unroll.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// The size of the largest block of so many rows, as for_row_blocks cuts them.
constexpr int64_t largest_block(int64_t rows, int64_t most) { return rows > most / 2 ? most : rows > 2 ? 4 : rows; }

// Calls body(first, Count<size>) for all rows, in blocks that are powers of two, up to kMost, which is 4 at least; the last
// may be larger than what is left.
template <int kMost, class Body>
inline void for_row_blocks(int64_t rows, const Body& body) {
  int64_t first = 0;
  for (; rows - first > kMost / 2; first += kMost) body(first, Count<kMost>{});
  if (rows - first > 2) return body(first, Count<4>{});
  if (rows - first == 2) return body(first, Count<2>{});
  if (rows - first == 1) return body(first, Count<1>{});
}

// Where the rows of a block begin, whose first is given; the last that there is stands for those that there are not.
template <int kRows, class T>
inline void point_at_rows(const T* inputs, int64_t rows, int64_t stride, int64_t first, const T* (&at)[kRows]) {
  for (int r = 0; r < kRows; ++r) at[r] = inputs + least(first + r, rows - 1) * stride;
}

}  // namespace
}  // namespace winnow
