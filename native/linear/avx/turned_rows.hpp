// A block of a weight in rows as whole numbers of a panel, for AVX2 and AVX-512: turned in pairs of inputs.
#pragma once

#include <cstdint>

#include "linear/contract.hpp"
#include "rounded/avx/panel.hpp"
#include "rounded/avx/rounding.hpp"
#include "rounded/sizes.hpp"
#include "simd/element.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Pairs of inputs, of a vector of outputs each, of a weight in rows of type W; zero for those that there are not.
template <class W>
inline void turn_rows(const winnow_linear_layer& layer, int64_t input, int64_t output, TurnedPairs& to) {
  const W* weight = static_cast<const W*>(layer.weight) + output * layer.inputs + input;
  const int64_t outputs = layer.outputs - output, inputs = layer.inputs - input;
  for (int64_t first = 0; first < kRoundedTogether; first += 2 * Vec::width) {
    Whole rows[Vec::width];
    for (int64_t r = 0; r < Vec::width; ++r) {
      rows[r] = r < outputs ? read_pairs(weight + r * layer.inputs + first, inputs - first) : no_whole();
    }
    transpose(rows);
    for (int64_t i = 0; i < Vec::width; ++i) to[first / 2 + i] = rows[i];
  }
}

// Of bf16: the largest of an output is known before one of them is in fp32.
inline void round_rows(const winnow_linear_layer& layer, int64_t input, int64_t output, int16_t* to, float* scales) {
  for (int64_t o = 0; o < kPanelOutputs; o += Vec::width) {
    TurnedPairs pairs;
    turn_rows<Bf16>(layer, input, output + o, pairs);
    round_pairs(pairs, to + 2 * o, scales + o);
  }
}

// Scales of the outputs of a vector, zero for those that there are not.
inline Vec scales_of(const winnow_linear_layer& layer, int64_t output) {
  const int64_t outputs = layer.outputs - output;
  return outputs > 0 ? load_up_to(static_cast<const Bf16*>(layer.scales) + output, outputs) : broadcast(0.0f);
}

// Of 8 bits: they are whole already, and keep their scale.
inline void turn_bytes(const winnow_linear_layer& layer, int64_t input, int64_t output, int16_t* to, float* scales) {
  for (int64_t o = 0; o < kPanelOutputs; o += Vec::width) {
    TurnedPairs pairs;
    turn_rows<Int8>(layer, input, output + o, pairs);
    store(scales + o, scales_of(layer, output + o));
    for (int64_t i = 0; i < kRoundedTogether / 2; ++i) store_pairs(to + 2 * (i * kPanelOutputs + o), pairs[i]);
  }
}

}  // namespace
}  // namespace winnow
