// A weight in bf16 as pairs: for two inputs after another, the outputs that a thread does at a time.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "linear/avx512/channels.hpp"
#include "linear/contract.hpp"
#include "simd/avx512.hpp"
#include "simd/avx512/transpose.hpp"
#include "simd/element.hpp"
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

// The inputs [first, last). Outputs and inputs that there are not are zero.
inline void lay_pairs(const winnow_linear_layer& layer, int64_t first, int64_t last, int64_t output, PairPanel& panel) {
  using Channels = PairedChannels<Bf16>;
  for (int v = 0; v < kPairVectors; ++v, output += Vec::width) {
    const Bf16* weight = static_cast<const Bf16*>(layer.weight) + output * layer.inputs;
    const int64_t outputs = layer.outputs - output;
    for (int64_t input = first; input < last; input += kWordsTogether) {
      const int64_t rest = last - input;
      __m512i rows[Vec::width];
      for (int64_t r = 0; r < Vec::width; ++r) {
        const Bf16* row = weight + r * layer.inputs + input;
        rows[r] = r >= outputs             ? _mm512_setzero_si512()
                  : rest >= kWordsTogether ? Channels::weight(row)
                                           : Channels::weight_up_to(row, rest);
      }
      transpose(rows);
      for (int64_t i = 0; i < Vec::width; ++i) panel[(input - first) / 2 + i][v] = rows[i];
    }
  }
}

}  // namespace
}  // namespace winnow
