// A block of a weight as whole numbers, for AVX2: first in fp32, whatever it is written as.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "linear/avx/columns.hpp"
#include "linear/avx2/nibbles.hpp"
#include "linear/contract.hpp"
#include "rounded/avx/panel.hpp"
#include "rounded/avx/rounding.hpp"
#include "simd/avx2.hpp"
#include "simd/element.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Of a weight in rows of type W.
template <class T, class W>
inline void read_rows(const winnow_linear_layer& layer, int64_t input, int64_t output, WeightColumns& columns) {
  for (int64_t o = 0; o < kPanelOutputs; o += Vec::width) {
    const int64_t outputs = least(Vec::width, layer.outputs - output - o);
    const Vec scale = scales_of<T>(layer, output + o);
    const W* from = static_cast<const W*>(layer.weight) + (output + o) * layer.inputs + input;
    for (int64_t i = 0; i < kRoundedTogether; i += Vec::width) {
      const int64_t inputs = least(Vec::width, layer.inputs - input - i);
      Vec rows[Vec::width];
      for (int64_t r = 0; r < Vec::width; ++r) {
        rows[r] = r < outputs && inputs > 0 ? load_up_to(from + r * layer.inputs + i, inputs) : broadcast(0.0f);
      }
      transpose(rows);
      for (int64_t r = 0; r < Vec::width; ++r) store(columns.numbers[i + r] + o, rows[r] * scale);
    }
  }
}

// Of a weight of 4 bits, in the order that nibbles.hpp tells, with scales and middles of type T.
template <class T>
inline void read_nibbles(const winnow_linear_layer& layer, int64_t input, int64_t output, WeightColumns& columns) {
  const int64_t inputs = least(kRoundedTogether, layer.inputs - input), block = output / kNibbleOutputs;
  const bool high = output % kNibbleOutputs != 0;
  const uint8_t* from = static_cast<const uint8_t*>(layer.weight) + (block * layer.inputs + input) * kNibbleOutputs / 2;
  for (int64_t i = 0; i < inputs; i += WINNOW_SCALE_GROUP) {
    const T* pairs = static_cast<const T*>(layer.scales) +
                     2 * ((input + i) / WINNOW_SCALE_GROUP * layer.outputs + output);
    for (int64_t o = 0; o < kPanelOutputs; o += Vec::width) {
      Vec scale = load(pairs + 2 * o), middle = load(pairs + 2 * o + Vec::width);
      deal_lanes(scale, middle);
      const Vec least_number = fma(broadcast(-8.0f), scale, middle);
      for (int64_t k = i; k < i + WINNOW_SCALE_GROUP; ++k) {
        const __m256i both = _mm256_cvtepu8_epi32(eight_bytes(from + k * kNibbleOutputs / 2 + o));
        const __m256i number = high ? _mm256_srli_epi32(both, 4) : _mm256_and_si256(both, _mm256_set1_epi32(15));
        store(columns.numbers[k] + o, fma({_mm256_cvtepi32_ps(number)}, scale, least_number));
      }
    }
  }
  columns.clear_from(inputs);
}

// The block from an input on of a panel's outputs, with scales and middles of type T, as round_columns has it.
template <class T>
inline void round_weight(const winnow_linear_layer& layer, int64_t input, int64_t output, int16_t* to, float* scales) {
  WeightColumns columns;
  layer.bits == 4   ? read_nibbles<T>(layer, input, output, columns)
  : layer.bits == 8 ? read_rows<T, Int8>(layer, input, output, columns)
                    : read_rows<T, T>(layer, input, output, columns);
  round_columns(columns.numbers, to, scales);
}

}  // namespace
}  // namespace winnow
