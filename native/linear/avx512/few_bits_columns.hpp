// Columns of a weight of 4, 5 or 6 bits, in the order that levels.hpp tells, for AVX-512.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <type_traits>

#include "linear/avx/columns.hpp"
#include "linear/avx512/level_pairs.hpp"
#include "linear/avx512/level_values.hpp"
#include "linear/avx512/levels.hpp"
#include "linear/contract.hpp"
#include "simd/avx512.hpp"
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

// A group of inputs of a half of a block's outputs; the first input of the group is the i-th of the columns.
template <int kBits, int kHalf>
inline void read_group(LevelPlanes<kBits> whole, const Bf16* scales, int64_t apart, int64_t i, WeightColumns& columns) {
  for (int64_t part = 0; part < kScaleParts<kBits>; ++part, scales += apart) {
    const LevelValues<kBits> values(scales);
    LevelPlanes<kBits> planes = whole.part(part);
    for (const int64_t end = i + kGroupInputs<kBits>; i < end; i += 2 * kSharing<kBits>, planes.high += kLine) {
      unroll<kSharing<kBits>>([&](auto place) __attribute__((always_inline)) {
        const LevelPairs<kBits> pairs(planes.low, planes.high, place);
        planes.low += kLine;
        const __m512i even = pairs.template numbers<kHalf>(), odd = pairs.template numbers<kHalf + 2>();
        const int64_t first = i + 2 * place;
        store_in_order(values.template value<kHalf>(lower(Bf16{}, even)),
                       values.template value<kHalf + 2>(lower(Bf16{}, odd)), columns.numbers[first]);
        store_in_order(values.template value<kHalf>(upper(Bf16{}, even)),
                       values.template value<kHalf + 2>(upper(Bf16{}, odd)), columns.numbers[first + 1]);
      });
    }
  }
}

template <int kBits, int kHalf>
inline void read_levels(const winnow_linear_layer& layer, int64_t input, int64_t block, WeightColumns& columns) {
  const int64_t inputs = least(kRoundedTogether, layer.inputs - input), apart = kScaleNumbers<kBits> * layer.outputs;
  for (int64_t i = 0; i < inputs; i += WINNOW_SCALE_GROUP) {
    read_group<kBits, kHalf>({layer, block, input + i}, scales_at<kBits>(layer, block, input + i), apart, i, columns);
  }
  columns.clear_from(inputs);
}

// A block of inputs of the outputs of a panel; scales and middles are bf16.
template <class T>
inline void read_few_bits(const winnow_linear_layer& layer, int64_t input, int64_t output, WeightColumns& columns) {
  static_assert(std::is_same_v<T, Bf16>);
  const int64_t high = output % kOutputsAtOnce, block = output - high;
  with_bits(layer, [&](auto bits) {
    if constexpr (bits < 8) {
      high ? read_levels<bits, 1>(layer, input, block, columns) : read_levels<bits, 0>(layer, input, block, columns);
    }
  });
}

}  // namespace
}  // namespace winnow
