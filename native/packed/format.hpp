// The fields of winnow_rows: how many bytes rows have, and how their numbers lie in them.
#pragma once

#include <cstdint>

#include "simd/unroll.hpp"
#include "sizes.hpp"
#include "winnow_native.h"

namespace winnow {
namespace {

constexpr int64_t kScaleGroup = WINNOW_SCALE_GROUP;
constexpr int64_t kStartStep = WINNOW_START_STEP;
constexpr int64_t kBlockBytes = WINNOW_BLOCK_BYTES;

// body(Count<bits>) for numbers of 8, 4 or 2 bits.
template <class Body>
__attribute__((always_inline)) inline void for_width(int32_t bits, const Body& body) {
  switch (bits) {
    case 8: return body(Count<8>{});
    case 4: return body(Count<4>{});
    default: return body(Count<2>{});
  }
}

inline int64_t bytes_of_bits(int64_t bits) { return divide_up(bits, 8); }

// Bytes of a row of `numbers`.
inline int64_t bytes_of_row(const winnow_rows& rows, int64_t numbers, int64_t element_bytes) {
  return rows.bits == 16 ? numbers * element_bytes : bytes_of_bits(numbers * rows.bits);
}

inline const uint8_t* bytes_at(const void* p) { return static_cast<const uint8_t*>(p); }

// True where rows of `count` numbers are whole blocks of integers.
inline bool whole_blocks(const winnow_rows& rows, int64_t count) {
  return rows.bits != 16 && !rows.masks && count > 0 && count * rows.bits % (8 * kBlockBytes) == 0;
}

// True where the sizes of pruned entries are drawn.
inline bool draws_sizes(int32_t recovery) { return recovery != WINNOW_DEGENERATE && recovery != WINNOW_CONSTANT; }

// How many numbers the statistics of a slot are.
inline int32_t statistics_of(int32_t recovery) {
  switch (recovery) {
    case WINNOW_CONSTANT: return 0;
    case WINNOW_GAUSSIAN:
    case WINNOW_TRUNCATED_EXPONENTIAL: return 2;
    case WINNOW_TRUNCATED_GAUSSIAN: return 3;
    default: return 1;
  }
}

}  // namespace
}  // namespace winnow
