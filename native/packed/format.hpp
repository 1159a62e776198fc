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

// Numbers of 6 and 3 bits lie in two planes: their low bits, so many, and behind those of all numbers their high ones.
constexpr int low_bits(int bits) { return bits == 6 ? 4 : bits == 3 ? 2 : bits; }

// Bytes of a block of numbers of so many bits, which are a plane of their own.
constexpr int64_t block_bytes(int bits) { return bits == 1 ? kBlockBytes / 2 : kBlockBytes; }

// Numbers of a block; of as many blocks of one plane as one of the other has, where there are two.
constexpr int64_t block_numbers(int bits) { return bits == 8 ? 16 : bits == 4 ? 32 : 64; }

// body(Count<bits>) for numbers of 8, 6, 4, 3 or 2 bits.
template <class Body>
__attribute__((always_inline)) inline void for_width(int32_t bits, const Body& body) {
  switch (bits) {
    case 8: return body(Count<8>{});
    case 6: return body(Count<6>{});
    case 4: return body(Count<4>{});
    case 3: return body(Count<3>{});
    default: return body(Count<2>{});
  }
}

inline int64_t bytes_of_bits(int64_t bits) { return divide_up(bits, 8); }

// Bytes of a row of `numbers`.
inline int64_t bytes_of_row(const winnow_rows& rows, int64_t numbers, int64_t element_bytes) {
  if (rows.bits == 16) return numbers * element_bytes;
  const int low = low_bits(rows.bits);
  return bytes_of_bits(numbers * low) + bytes_of_bits(numbers * (rows.bits - low));
}

inline const uint8_t* bytes_at(const void* p) { return static_cast<const uint8_t*>(p); }

// True where rows of `count` numbers are whole blocks of integers.
inline bool whole_blocks(const winnow_rows& rows, int64_t count) {
  return rows.bits != 16 && !rows.masks && count > 0 && count % block_numbers(rows.bits) == 0;
}

// True where rows are numbers as they are; of keys, where queries meet these as they are, too.
inline bool are_numbers(const winnow_rows& rows) { return !rows.masks && rows.bits == 16; }
inline bool meet_as_they_are(const winnow_rows& keys) { return are_numbers(keys) && !keys.rotated && !keys.spreads; }

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
