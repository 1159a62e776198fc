// Rows of inputs as whole numbers that meet levels of 4 bits, for AVX2: signed bytes, or numbers of 16 bits.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <limits>

#include "linear/contract.hpp"
#include "linear/laid_blocks.hpp"
#include "rounded/avx/rounding.hpp"
#include "rounded/sizes.hpp"
#include "simd/avx2.hpp"
#include "simd/element.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// A block of a row, whose largest number N holds, and the sums of its inputs that share a scale of a weight, in fp32.
template <class N>
struct InputLevels {
  static constexpr int64_t kGroups = kRoundedTogether / WINNOW_SCALE_GROUP;
  static constexpr int32_t kMost = std::numeric_limits<N>::max();

  N numbers[kRoundedTogether];
  float scale;
  float sums[kGroups];
};

template <class N>
using LevelRows = LaidBlocks<InputLevels<N>>;

// Four vectors of whole numbers, in their order.
inline void store_group(const Whole (&numbers)[4], int16_t* to) {
  store_beside(to, numbers[0], numbers[1]);
  store_beside(to + 2 * Vec::width, numbers[2], numbers[3]);
}
inline void store_group(const Whole (&numbers)[4], int8_t* to) {
  const __m256i first = _mm256_packs_epi32(numbers[0].v, numbers[1].v);
  const __m256i second = _mm256_packs_epi32(numbers[2].v, numbers[3].v);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
}

inline int32_t sum_of(const Whole (&numbers)[4]) {
  const __m256i lanes = _mm256_add_epi32(_mm256_add_epi32(numbers[0].v, numbers[1].v),
                                         _mm256_add_epi32(numbers[2].v, numbers[3].v));
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
  return _mm_cvtsi128_si32(sum);
}

// A block of inputs from `from` on, of which `count` are there. Where the largest is not finite, the scale is not either.
template <class N>
inline void round_block(const Bf16* from, int64_t count, InputLevels<N>& to) {
  static_assert(WINNOW_SCALE_GROUP == 4 * Vec::width);
  const InputBlock block(from, count);
  const RoundedScale scales(block.largest, InputLevels<N>::kMost);
  to.scale = _mm256_cvtss_f32(scales.back.v);
  for (int64_t group = 0; group < InputLevels<N>::kGroups; ++group) {
    Whole whole[4];
    for (int v = 0; v < 4; ++v) whole[v] = round_whole(block.numbers[4 * group + v], scales.to);
    store_group(whole, to.numbers + group * WINNOW_SCALE_GROUP);
    to.sums[group] = static_cast<float>(sum_of(whole)) * to.scale;
  }
}

template <class N>
inline void round_to_levels(const winnow_linear_layer& layer, const LinearRows& all, const LaidInputs& rounded, int64_t row) {
  const LevelRows<N> to(rounded);
  const Bf16* from = static_cast<const Bf16*>(all.inputs) + row * layer.inputs;
  for (int64_t block = 0; block < rounded_blocks(layer); ++block) {
    const int64_t input = block * kRoundedTogether;
    round_block(from + input, layer.inputs - input, *to.at(row, block));
  }
}

}  // namespace
}  // namespace winnow
