// The weight of a linear layer as pairs of bf16, whatever it is written as: for two inputs after another, the outputs that a
// thread does at a time.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "linear/avx512/channels.hpp"
#include "linear/avx512/nibbles.hpp"
#include "linear/contract.hpp"
#include "simd/avx512.hpp"
#include "simd/avx512/pairs.hpp"
#include "simd/avx512/transpose.hpp"
#include "simd/element.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Vectors of the pairs of two inputs, and inputs of a panel.
constexpr int kPairVectors = static_cast<int>(kOutputsAtOnce / Vec::width);
constexpr int64_t kPanelInputs = 256;

// [kPanelInputs / 2, kPairVectors] vectors.
using PairPanel = __m512i[kPanelInputs / 2][kPairVectors];

// Two inputs of 16 bits to a word: of as many outputs 16 words each.
constexpr int64_t kWordsTogether = 2 * Vec::width;

// The inputs [first, last) of a weight in rows of type W. Outputs and inputs that there are not are zero.
template <class W>
inline void lay_rows(const winnow_linear_layer& layer, int64_t first, int64_t last, int64_t output, PairPanel& panel) {
  using Channels = PairedChannels<W>;
  for (int v = 0; v < kPairVectors; ++v, output += Vec::width) {
    const W* weight = static_cast<const W*>(layer.weight) + output * layer.inputs;
    const int64_t outputs = layer.outputs - output;
    for (int64_t input = first; input < last; input += kWordsTogether) {
      const int64_t rest = last - input;
      __m512i rows[Vec::width];
      for (int64_t r = 0; r < Vec::width; ++r) {
        const W* row = weight + r * layer.inputs + input;
        rows[r] = r >= outputs             ? _mm512_setzero_si512()
                  : rest >= kWordsTogether ? Channels::weight(row)
                                           : Channels::weight_up_to(row, rest);
      }
      transpose(rows);
      for (int64_t i = 0; i < Vec::width; ++i) panel[(input - first) / 2 + i][v] = rows[i];
    }
  }
}

// Two inputs of half of the outputs: numbers, their scales and middles of those with an even place and of the others.
inline void lay_half(__m512i even, __m512i odd, const Vec (&scales)[2], const Vec (&middles)[2], __m512i* to) {
  const __m512i order = _mm512_set_epi16(55, 23, 39, 7, 54, 22, 38, 6, 53, 21, 37, 5, 52, 20, 36, 4, 51, 19, 35, 3, 50, 18,
                                         34, 2, 49, 17, 33, 1, 48, 16, 32, 0);
  const auto of = [&](Vec a, Vec b) __attribute__((always_inline)) {
    return round_lanes(fma(a, scales[0], middles[0]), fma(b, scales[1], middles[1]));
  };
  const __m512i first = of(lower(Bf16{}, even), lower(Bf16{}, odd));
  const __m512i second = of(upper(Bf16{}, even), upper(Bf16{}, odd));
  to[0] = _mm512_permutex2var_epi16(first, order, second);
  to[1] = _mm512_permutex2var_epi16(first, _mm512_add_epi16(order, _mm512_set1_epi16(8)), second);
}

// The inputs [first, last) of a weight of 4 bits, a whole number of groups.
inline void lay_nibbles(const winnow_linear_layer& layer, int64_t first, int64_t last, int64_t output, PairPanel& panel) {
  static_assert(kPanelInputs % WINNOW_SCALE_GROUP == 0 && kNibbleSums == 4 && kPairVectors == 4);
  const uint8_t* numbers = static_cast<const uint8_t*>(layer.weight) + (output * layer.inputs + first * kOutputsAtOnce) / 2;
  __m512i* to = panel[0];
  for (; first < last; first += WINNOW_SCALE_GROUP) {
    const Bf16* pairs = static_cast<const Bf16*>(layer.scales) + 2 * (first / WINNOW_SCALE_GROUP * layer.outputs + output);
    const NibbleScales of(pairs);
    for (int64_t i = 0; i < WINNOW_SCALE_GROUP; i += 2, numbers += kOutputsAtOnce, to += kPairVectors) {
      const Nibbles nibbles(numbers);
      unroll<2>([&](auto half) __attribute__((always_inline)) {
        constexpr int kEven = half, kOdd = half + 2;
        lay_half(nibbles.numbers<kEven>(), nibbles.numbers<kOdd>(), {of.scales[kEven], of.scales[kOdd]},
                 {of.middles[kEven], of.middles[kOdd]}, to + 2 * half);
      });
    }
  }
}

}  // namespace
}  // namespace winnow
