// A block of a weight as whole numbers, for AVX-512.
//
// Numbers in bf16 are turned in pairs of inputs, of which the largest of an output is known before one of them is in fp32.
// Those of 8 bits are whole already, and keep their scale. What levels of 4 to 6 bits stand for is written as fp32 first.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <type_traits>

#include "linear/avx/columns.hpp"
#include "linear/avx512/level_values.hpp"
#include "linear/avx512/levels.hpp"
#include "linear/contract.hpp"
#include "rounded/avx/panel.hpp"
#include "rounded/avx/rounding.hpp"
#include "simd/avx512.hpp"
#include "simd/avx512/transpose.hpp"
#include "simd/element.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

static_assert(2 * kPanelOutputs == kOutputsAtOnce, "a panel has half of a block's outputs");

// Numbers of even outputs and of odd ones -> all in their order.
inline void store_in_order(Vec even, Vec odd, float (&to)[kPanelOutputs]) {
  const InOrder found(_mm512_castps_si512(even.v), _mm512_castps_si512(odd.v));
  store(to, {_mm512_castsi512_ps(found.first)});
  store(to + Vec::width, {_mm512_castsi512_ps(found.second)});
}

// Of a half of the outputs of a block.
template <int kBits, int kHalf>
inline void read_levels(const winnow_linear_layer& layer, int64_t input, int64_t block, WeightColumns& columns) {
  const int64_t inputs = least(kRoundedTogether, layer.inputs - input);
  for (int64_t group = 0; group < inputs; group += WINNOW_SCALE_GROUP) {
    for_group<kBits>(layer, input + group, block, [&](const auto& pairs, const auto& values, int64_t i) {
      const __m512i even = pairs.template numbers<kHalf>(), odd = pairs.template numbers<kHalf + 2>();
      store_in_order(values.template value<kHalf>(lower(Bf16{}, even)),
                     values.template value<kHalf + 2>(lower(Bf16{}, odd)), columns.numbers[group + i]);
      store_in_order(values.template value<kHalf>(upper(Bf16{}, even)),
                     values.template value<kHalf + 2>(upper(Bf16{}, odd)), columns.numbers[group + i + 1]);
    });
  }
  columns.clear_from(inputs);
}

// The first n of 32 numbers of a row, as 16 bits each; the others are zero.
inline __mmask32 first_numbers(int64_t n) {
  return n < 2 * Vec::width ? static_cast<__mmask32>((uint64_t{1} << (n < 0 ? 0 : n)) - 1) : ~__mmask32{0};
}
inline __m512i read_pairs(const Bf16* p, int64_t n) { return _mm512_maskz_loadu_epi16(first_numbers(n), p); }
inline __m512i read_pairs(const Int8* p, int64_t n) {
  return _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(first_numbers(n), p));
}

// Pairs of inputs of a block, of a vector of outputs each; zero for those that there are not.
using TurnedPairs = __m512i[kRoundedTogether / 2];

// Those of a weight in rows of type W.
template <class W>
inline void turn_rows(const winnow_linear_layer& layer, int64_t input, int64_t output, TurnedPairs& to) {
  const W* weight = static_cast<const W*>(layer.weight) + output * layer.inputs + input;
  const int64_t outputs = layer.outputs - output, inputs = layer.inputs - input;
  for (int64_t first = 0; first < kRoundedTogether; first += 2 * Vec::width) {
    __m512i rows[Vec::width];
    for (int64_t r = 0; r < Vec::width; ++r) {
      rows[r] = r < outputs ? read_pairs(weight + r * layer.inputs + first, inputs - first) : _mm512_setzero_si512();
    }
    transpose(rows);
    for (int64_t i = 0; i < Vec::width; ++i) to[first / 2 + i] = rows[i];
  }
}

// The size of the largest number of each output.
inline Vec largest_of(const TurnedPairs& pairs) {
  __m512i most = _mm512_setzero_si512();
  for (const __m512i each : pairs) most = _mm512_max_epu16(most, _mm512_and_si512(each, _mm512_set1_epi16(0x7fff)));
  return of_size(larger(size_bits(lower(Bf16{}, most)), size_bits(upper(Bf16{}, most))));
}

inline void round_rows(const winnow_linear_layer& layer, int64_t input, int64_t output, int16_t* to, float* scales) {
  for (int64_t o = 0; o < kPanelOutputs; o += Vec::width) {
    TurnedPairs pairs;
    turn_rows<Bf16>(layer, input, output + o, pairs);
    const RoundedScale scale(largest_of(pairs), kMostWeight);
    store(scales + o, scale.back);
    for (int64_t i = 0; i < kRoundedTogether / 2; ++i) {
      const Whole first = round_whole(lower(Bf16{}, pairs[i]), scale.to);
      const Whole second = round_whole(upper(Bf16{}, pairs[i]), scale.to);
      store_pairs(to + 2 * (i * kPanelOutputs + o), join_pairs(first, second));
    }
  }
}

inline void turn_bytes(const winnow_linear_layer& layer, int64_t input, int64_t output, int16_t* to, float* scales) {
  for (int64_t o = 0; o < kPanelOutputs; o += Vec::width) {
    TurnedPairs pairs;
    turn_rows<Int8>(layer, input, output + o, pairs);
    store(scales + o, scales_of<Bf16>(layer, output + o));
    for (int64_t i = 0; i < kRoundedTogether / 2; ++i) store_pairs(to + 2 * (i * kPanelOutputs + o), {pairs[i]});
  }
}

template <int kBits>
inline void round_levels(const winnow_linear_layer& layer, int64_t input, int64_t output, int16_t* to, float* scales) {
  WeightColumns columns;
  const int64_t half = output % kOutputsAtOnce, block = output - half;
  half ? read_levels<kBits, 1>(layer, input, block, columns) : read_levels<kBits, 0>(layer, input, block, columns);
  round_columns(columns.numbers, to, scales);
}

// The block from an input on of a panel's outputs, as round_columns has it.
template <class T>
inline void round_weight(const winnow_linear_layer& layer, int64_t input, int64_t output, int16_t* to, float* scales) {
  static_assert(std::is_same_v<T, Bf16>, "and so are scales and middles");
  if (layer.bits == 16) return round_rows(layer, input, output, to, scales);
  with_bits(layer, [&](auto bits) {
    if constexpr (bits == 8) {
      turn_bytes(layer, input, output, to, scales);
    } else {
      round_levels<bits>(layer, input, output, to, scales);
    }
  });
}

}  // namespace
}  // namespace winnow
