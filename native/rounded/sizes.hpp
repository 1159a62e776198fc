// Numbers in blocks that share a scale, as whole numbers of 16 bits.
#pragma once

#include <cstdint>

namespace winnow {

namespace {

// Whole numbers that share a scale. Sums of so many products fit into 32 bits where those of rows are not above kMostInput and
// those of weights, which rows meet, not above kMostWeight.
constexpr int64_t kRoundedTogether = 64;
constexpr int32_t kMostInput = 8191, kMostWeight = 4095;
static_assert(kRoundedTogether * kMostInput * kMostWeight <= INT32_MAX, "a sum may overflow");

}  // namespace

// Rows of them; behind the last number of a row there may be zeros.
struct RoundedRows {
  int64_t blocks;     // Of a row.
  int16_t* numbers;   // [rows, blocks, kRoundedTogether]
  float* scales;      // [rows, blocks]

  RoundedRows from(int64_t row, int64_t block) const {
    const int64_t at = row * blocks + block;
    return {blocks, numbers + at * kRoundedTogether, scales + at};
  }
};

}  // namespace winnow
