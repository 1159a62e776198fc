// A part of a weight in fp32, whatever it is written as: for each input of a block, the outputs of a panel.
#pragma once

#include <cstdint>

#include "rounded/avx/panel.hpp"
#include "rounded/sizes.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

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
