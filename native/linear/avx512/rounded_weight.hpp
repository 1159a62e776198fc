// A block of a weight as whole numbers, for AVX-512. What levels of 4 to 6 bits stand for is written as fp32 first.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <type_traits>

#include "linear/avx/turned_rows.hpp"
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

// A block of inputs of a panel's outputs. Those that there are not are zero.
struct WeightColumns {
  alignas(64) float numbers[kRoundedTogether][kPanelOutputs];

  // Zeros for inputs from the `first` on.
  void clear_from(int64_t first) {
    for (int64_t i = first; i < kRoundedTogether; ++i) {
      for (int64_t o = 0; o < kPanelOutputs; o += Vec::width) store(numbers[i] + o, broadcast(0.0f));
    }
  }
};

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
