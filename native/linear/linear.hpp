// Rows of inputs -> those of a linear layer, for few rows: the weight is read where it lies, once, and in its order.
//
// What bounds the product of a token is how fast the weight comes from memory. So rows of the weight are read one after
// another, with what comes next asked for ahead, and inputs are what is read again. Several of them may be too many for the
// first-level cache: a block of their channels meets that of all outputs a thread does at a time, then the next does.
#pragma once

#include <cstdint>

#include "linear/block.hpp"
#include "linear/contract.hpp"
#include "linear/finish.hpp"
#include "linear/rows.hpp"
#include "linear/sums.hpp"
#include "simd/prefetch.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

#ifdef __AVX512BF16__
#include "linear/avx512/nibbles.hpp"
#endif
#ifdef __AVX512F__
#include "linear/avx512/write_out.hpp"
#endif

namespace winnow {
namespace {

// Bytes of a block of several inputs: half of a first-level cache, the rest of which is for the weight.
constexpr int64_t kInputBytes = 24 * 1024;

// Sums of all rows of a block, whose channels are all that there are.
template <class T, class W>
inline void add_up(ChannelBlock<T, W> block, LinearSums& sums) {
  using Channels = typename ChannelsOf<T, W>::Type;
  constexpr int64_t kBytes = static_cast<int64_t>(sizeof(W));
  const int64_t row_bytes = least(block.rows, kMostAtOnce) * static_cast<int64_t>(sizeof(T));
  const int64_t fit = block.rows == 1 ? block.stride : kInputBytes / row_bytes;
  const int64_t width = round_up(divide_up(block.stride, divide_up(block.stride, fit)), Channels::kTogether);
  // Rows that are read in one piece follow each other; of others the same channels are read next.
  block.ahead = width < block.stride ? divide_up(kPrefetchBytes, width * kBytes) * block.stride * kBytes : kPrefetchBytes;
  for (block.first = 0; block.first < block.stride; block.first = block.last) {
    block.last = least(block.first + width, block.stride);
    for (int64_t output = 0; output < block.outputs; output += Vec::width) {
      for_row_blocks<kMostAtOnce>(block.rows, [&](int64_t first, auto size) { sums.add<size>(block, first, output); });
    }
  }
}

// Inputs of type T, a weight of type W.
template <class T, class W>
void linear(const winnow_linear_layer& layer, const LinearRows& all, int64_t first, int64_t last) {
  const W* weight = static_cast<const W*>(layer.weight) + first * layer.inputs;
  for (int64_t row = 0; row < all.count; row += kMostTogether) {
    const int64_t rows = least(kMostTogether, all.count - row);
    LinearSums sums(rows);
    add_up<T, W>({static_cast<const T*>(all.inputs) + row * layer.inputs, weight, rows, last - first, layer.inputs, 0, 0, 0},
                 sums);
    for (int64_t r = 0; r < rows; ++r) {
      float found[kOutputsAtOnce];
      sums.copy_row(r, found);
      finish<T>(layer, found, layer.scales, all, row + r, first, last);
    }
  }
}

// Inputs in bf16, a weight of 4 bits; null where pairs of bf16 have no product.
#ifdef __AVX512BF16__
constexpr LinearFunction kLinearInt4 = linear_nibbles;
#else
constexpr LinearFunction kLinearInt4 = nullptr;
#endif

// A weight of 4 bits in bf16; null where torch packs it in another order.
#ifdef __AVX512F__
constexpr WriteOutFunction kWriteOutInt4 = write_out_nibbles;
#else
constexpr WriteOutFunction kWriteOutInt4 = nullptr;
#endif

}  // namespace
}  // namespace winnow
