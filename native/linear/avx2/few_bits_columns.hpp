// Columns of a weight of 4 bits, in the order that nibbles.hpp tells, for AVX2.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "linear/avx/columns.hpp"
#include "linear/avx2/nibbles.hpp"
#include "linear/contract.hpp"
#include "simd/avx2.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// A block of inputs of the outputs of a panel, with scales and middles of type T.
template <class T>
inline void read_few_bits(const winnow_linear_layer& layer, int64_t input, int64_t output, WeightColumns& columns) {
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

}  // namespace
}  // namespace winnow
