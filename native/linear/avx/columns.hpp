// A part of a weight in fp32, whatever it is written as: for each input of a block, the outputs of a panel.
#pragma once

#include <cstdint>

#include "linear/contract.hpp"
#include "rounded/avx/panel.hpp"
#include "rounded/sizes.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Scales of type T of the outputs of a vector, zero for those that there are not; 1 where a weight has none.
template <class T>
inline Vec scales_of(const winnow_linear_layer& layer, int64_t output) {
  if (!layer.scales) return broadcast(1.0f);
  const int64_t outputs = layer.outputs - output;
  return outputs > 0 ? load_up_to(static_cast<const T*>(layer.scales) + output, outputs) : broadcast(0.0f);
}

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

}  // namespace
}  // namespace winnow
