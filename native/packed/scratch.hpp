// A thread's own memory for rows that are unpacked.
#pragma once

#include "attend/contract.hpp"
#include "sizes.hpp"

namespace winnow {

// Rows of packed chunks that are unpacked together: few enough to stay in the first-level cache.
constexpr int64_t kTileRows = 32;

// Bytes or floats behind a row that unpacking may write, and of a copied row also read.
constexpr int64_t kRowSlack = 64;

// Single rows that a reader needs, see packed/rows.hpp.
constexpr int64_t kReaderRows = 6;

// The pieces of Scratch::packed.
struct PackedScratch {
  float* tile;     // kTileRows unpacked rows
  float* queries;  // kQueryPad rows
  float* reader;   // kReaderRows rows
  int64_t row_floats;
};

namespace {

// Floats of one row of any kind, unpacked or not, with slack.
constexpr int64_t packed_row_floats(const Shape& shape) {
  return round_up(shape.key_dim > shape.value_dim ? shape.key_dim : shape.value_dim, 64) + 2 * kRowSlack;
}

constexpr int64_t packed_floats(const Shape& shape) {
  return (kTileRows + kQueryPad + kReaderRows) * packed_row_floats(shape);
}

inline PackedScratch packed_scratch(const Shape& shape, float* memory) {
  const int64_t row = packed_row_floats(shape);
  return {memory, memory + kTileRows * row, memory + (kTileRows + kQueryPad) * row, row};
}

}  // namespace
}  // namespace winnow
