// Rows of inputs that are laid in blocks: the first block of all rows that are held, row after row, then the next.
#pragma once

#include <cstdint>

#include "linear/contract.hpp"

namespace winnow {
namespace {

template <class Block>
struct LaidBlocks {
  Block* first;
  int64_t held;

  explicit LaidBlocks(const LaidInputs& laid) : first(reinterpret_cast<Block*>(laid.memory) + laid.first), held(laid.held) {}

  Block* at(int64_t row, int64_t block) const { return first + block * held + row; }
};

// Of a row, in blocks of kRoundedTogether inputs.
template <class Block>
constexpr int64_t laid_row_bytes(const winnow_linear_layer& layer) {
  return rounded_blocks(layer) * static_cast<int64_t>(sizeof(Block));
}

}  // namespace
}  // namespace winnow
