// Rows of inputs -> those of a linear layer, for few rows: the weight is read where it lies, once, and in its order.
//
// What bounds the product of a token is how fast the weight comes from memory. So short rows of the weight are read one after
// another, with what comes next asked for ahead, and inputs are what is read again. Where they are read so often that this
// takes longer, a few rows of the weight are read side by side. And where they are too many for the first-level cache, a block
// of their channels meets that of all outputs a thread does at a time, then the next does.
#pragma once

#include <cstdint>
#include <limits>

#include "linear/block.hpp"
#include "linear/contract.hpp"
#include "linear/finish.hpp"
#include "linear/rows.hpp"
#include "linear/sums.hpp"
#include "simd/prefetch.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

#ifdef __AVX512BF16__
#include "linear/avx512/byte_rows.hpp"
#include "linear/avx512/few_bits.hpp"
#include "linear/avx512/paired_rows.hpp"
#endif
#ifdef __AVX512F__
#include "linear/avx512/write_out.hpp"
#elif defined(__AVX2__) && !defined(WINNOW_PORTABLE)
#include "linear/avx2/many_rows.hpp"
#include "linear/avx2/nibbles.hpp"
#endif

namespace winnow {
namespace {

// Sums of rows of inputs with a block of a weight, whose channels are all that there are.
template <class Channels, class T, class W>
inline void add_up(const T* inputs, int64_t rows, WeightBlock<W> block, LinearSums& sums) {
  CopiedInputs<Channels> copied;
  const int64_t width = copied.width(largest_block(rows, kMostAtOnce), block.stride);
  for (block.first = 0; block.first < block.stride; block.first = block.last) {
    block.last = least(block.first + width, block.stride);
    for_row_blocks<kMostAtOnce>(rows, [&](int64_t first, auto size) {
      const T* at[size];
      point_at_rows(inputs + block.first, rows, block.stride, first, at);
      copied.copy(at, block.channels());
      sums.add<size>(copied, block, first);
    });
  }
}

// Inputs of type T, a weight of type W.
template <class T, class W>
void linear(const winnow_linear_layer& layer, const LinearRows& all, int64_t first, int64_t last) {
  const W* weight = static_cast<const W*>(layer.weight) + first * layer.inputs;
  for (int64_t row = 0; row < all.count; row += kMostTogether) {
    const int64_t rows = least(kMostTogether, all.count - row);
    const T* inputs = static_cast<const T*>(all.inputs) + row * layer.inputs;
    const WeightBlock<W> block{weight, last - first, layer.inputs, 0, 0};
    LinearSums sums(rows);
    if (rows <= kFewRows) {
      add_up<typename ChannelsOfFew<T, W>::Type>(inputs, rows, block, sums);
    } else {
      add_up<typename ChannelsOf<T, W>::Type>(inputs, rows, block, sums);
    }
    for (int64_t r = 0; r < rows; ++r) {
      float found[kOutputsAtOnce];
      sums.copy_row(r, found);
      finish<T>(layer, found, layer.scales, all, row + r, first, last);
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
#ifdef __AVX512BF16__
template <>
constexpr FewBitsFunctions kLinearFewBits<Bf16> = {{linear_few_bits<4>, linear_few_bits<5>, linear_few_bits<6>},
                                                   kOutputsAtOnce};
#endif

// Many rows, of a weight in the dtype of the inputs and of one of few bits; null where fp32 keeps more digits, and where torch
// multiplies bf16 as fast.
template <class T>
constexpr ManyRowsKernel kManyRows = {};
template <class T>
constexpr ManyRowsKernel kManyRowsFewBits = {};
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(WINNOW_PORTABLE)
template <>
constexpr ManyRowsKernel kManyRows<Bf16> = {round_row<Bf16>,       rounded_row_bytes, many_rows<Bf16>,
                                            rounded_scratch_bytes, 1,                 std::numeric_limits<int64_t>::max()};
template <>
constexpr ManyRowsKernel kManyRowsFewBits<Bf16> = kManyRows<Bf16>;
#elif defined(WINNOW_ZEN)
template <>
constexpr ManyRowsKernel kManyRows<Bf16> = {nullptr, nullptr, paired_rows, paired_scratch_bytes, 2, kRowsOfSums};
template <>
constexpr ManyRowsKernel kManyRowsFewBits<Bf16> = {round_row_to_bytes, byte_row_bytes, rows_in_bytes,
                                                   byte_scratch_bytes, 1,              kRowsOfSums};
#endif

// A weight of 4 bits in bf16; null where torch packs it in another order.
#ifdef __AVX512F__
constexpr WriteOutFunction kWriteOutInt4 = write_out_nibbles;
#else
constexpr WriteOutFunction kWriteOutInt4 = nullptr;
#endif

}  // namespace
}  // namespace winnow
