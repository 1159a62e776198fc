// The weight of a linear layer in fp32, whatever it is written as: for each input of a block, the outputs of a panel.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "linear/avx2/nibbles.hpp"
#include "linear/contract.hpp"
#include "rounded/avx2/panel.hpp"
#include "rounded/sizes.hpp"
#include "simd/avx2.hpp"
#include "simd/element.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// A block of inputs of a panel's outputs. Those that there are not are zero.
struct WeightColumns {
  alignas(32) float numbers[kRoundedTogether][kPanelOutputs];

  // Of a weight in rows of type W, with a scale of type T for every output unless there are none.
  template <class T, class W>
  void read_rows(const winnow_linear_layer& layer, int64_t input, int64_t output) {
    for (int64_t o = 0; o < kPanelOutputs; o += Vec::width) {
      const int64_t outputs = least(Vec::width, layer.outputs - output - o);
      const Vec scale = scales<T>(layer, output + o, outputs);
      const W* from = static_cast<const W*>(layer.weight) + (output + o) * layer.inputs + input;
      for (int64_t i = 0; i < kRoundedTogether; i += Vec::width) {
        const int64_t inputs = least(Vec::width, layer.inputs - input - i);
        Vec rows[Vec::width];
        for (int64_t r = 0; r < Vec::width; ++r) {
          rows[r] = r < outputs && inputs > 0 ? load_up_to(from + r * layer.inputs + i, inputs) : broadcast(0.0f);
        }
        transpose(rows);
        for (int64_t r = 0; r < Vec::width; ++r) store(numbers[i + r] + o, rows[r] * scale);
      }
    }
  }

  // Of a weight of 4 bits in the order that nibbles.hpp tells, with scales and middles of type T.
  template <class T>
  void read_nibbles(const winnow_linear_layer& layer, int64_t input, int64_t output) {
    const int64_t inputs = least(kRoundedTogether, layer.inputs - input), block = output / kNibbleOutputs;
    const bool high = output % kNibbleOutputs != 0;
    const uint8_t* from = static_cast<const uint8_t*>(layer.weight) +
                          (block * layer.inputs + input) * kNibbleOutputs / 2;
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
          store(numbers[k] + o, fma({_mm256_cvtepi32_ps(number)}, scale, least_number));
        }
      }
    }
    for (int64_t i = inputs; i < kRoundedTogether; ++i) {
      for (int64_t o = 0; o < kPanelOutputs; o += Vec::width) store(numbers[i] + o, broadcast(0.0f));
    }
  }

 private:
  template <class T>
  static Vec scales(const winnow_linear_layer& layer, int64_t output, int64_t outputs) {
    if (!layer.scales) return broadcast(1.0f);
    return outputs > 0 ? load_up_to(static_cast<const T*>(layer.scales) + output, outputs) : broadcast(0.0f);
  }
};

}  // namespace
}  // namespace winnow
