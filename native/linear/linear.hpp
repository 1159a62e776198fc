// Rows of inputs -> those of a linear layer, for few rows: the weight is read where it lies, once, and in its order.
//
// What bounds the product of a token is how fast the weight comes from memory. So short rows of the weight are read one after
// another, with what comes next asked for ahead, and inputs are what is read again. Where they are read so often that this
// takes longer, a few rows of the weight are read side by side. And where they are too many for the first-level cache, a block
// of their channels meets that of all outputs a thread does at a time, then the next does.
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

#ifdef __AVX512F__
#include "linear/avx512/few_bits.hpp"
#include "linear/avx512/write_out.hpp"
#elif defined(__AVX2__) && !defined(WINNOW_PORTABLE)
#include "linear/avx2/nibbles.hpp"
#endif

namespace winnow {
namespace {

// What a tile of several asks for while rows meet a block of a weight, whose successor begins so many channels later.
template <class W>
inline SharedAhead share_of(int64_t tile, int64_t tiles, int64_t later) {
  if (tiles == 1) return {};
  return {tile == 0 ? 0 : 1, later * static_cast<int64_t>(sizeof(W))};
}

// Sums of rows of inputs, in tiles of up to kMost, with a block of a weight, whose channels are all that there are.
template <int kMost, class Channels, class T, class W>
inline void add_up(const T* inputs, int64_t rows, WeightBlock<W> block, LinearSums& sums) {
  const int64_t most = tile_rows<kMost>(rows), tiles = divide_up(rows, most);
  CopiedInputs<Channels> copied;
  const int64_t width = copied.width(most, block.stride);
  for (block.first = 0; block.first < block.stride; block.first = block.last) {
    block.last = least(block.first + width, block.stride);
    const int64_t later = (block.last < block.stride ? block.last : kOutputsAtOnce * block.stride) - block.first;
    for_row_tiles<kMost>(rows, most, [&](int64_t tile, int64_t first, auto size) {
      const T* at[size];
      point_at_rows(inputs + block.first, rows, block.stride, first, at);
      copied.copy(at, block.channels());
      sums.add<size>(copied, block, first, share_of<W>(tile, tiles, later));
    });
  }
}

// The outputs [first, last) of `rows` rows from `row` on, in such tiles.
template <int kMost, class Channels, class T, class W>
inline void multiply_rows(const winnow_linear_layer& layer, const LinearRows& all, int64_t row, int64_t rows, int64_t first,
                          int64_t last) {
  const W* weight = static_cast<const W*>(layer.weight) + first * layer.inputs;
  const T* inputs = static_cast<const T*>(all.inputs) + row * layer.inputs;
  LinearSums sums(rows);
  add_up<kMost, Channels>(inputs, rows, WeightBlock<W>{weight, last - first, layer.inputs, 0, 0}, sums);
  for_row_tiles<kMost>(rows, tile_rows<kMost>(rows), [&](int64_t, int64_t begin, auto size) {
    for (int64_t r = 0; r < least(size, rows - begin); ++r) {
      float found[kOutputsAtOnce];
      sums.copy_row<size>(begin, r, found);
      finish<T>(layer, found, layer.scales, all, row + begin + r, first, last);
    }
  });
}

// Inputs of type T, a weight of type W.
template <class T, class W>
void linear(const winnow_linear_layer& layer, const LinearRows& all, int64_t first, int64_t last) {
  for (int64_t row = 0; row < all.count; row += kMostTogether) {
    const int64_t rows = least(kMostTogether, all.count - row);
    if (rows <= kFewRows) {
      multiply_rows<kFewRows, typename ChannelsOfFew<T, W>::Type, T, W>(layer, all, row, rows, first, last);
    } else {
      multiply_rows<kMostAtOnce, typename ChannelsOf<T, W>::Type, T, W>(layer, all, row, rows, first, last);
    }
  }
}

// Inputs of type T, weights of 4, 5 and 6 bits, of which so many outputs lie beside each other; null and 0 where none is read.
// With AVX2 alone, numbers of 5 and 6 bits would take longer to be put together than those of 8 bits to come from memory.
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(WINNOW_PORTABLE)
template <class T>
constexpr FewBitsFunctions kLinearFewBits = {{linear_nibbles<T>, nullptr, nullptr}, kNibbleOutputs};
#else
template <class T>
constexpr FewBitsFunctions kLinearFewBits = {};
#endif
#ifdef __AVX512F__
template <>
constexpr FewBitsFunctions kLinearFewBits<Bf16> = {{linear_few_bits<4>, linear_few_bits<5>, linear_few_bits<6>},
                                                   kOutputsAtOnce};
#endif

// A weight of 4 bits in bf16; null where torch packs it in another order.
#ifdef __AVX512F__
constexpr WriteOutFunction kWriteOutInt4 = write_out_nibbles;
#else
constexpr WriteOutFunction kWriteOutInt4 = nullptr;
#endif

}  // namespace
}  // namespace winnow
