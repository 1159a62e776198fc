// The weight of a linear layer in fp32, whatever it is written as: for each input of a block, the outputs of a panel.
#pragma once

#include <cstdint>

#include "linear/contract.hpp"
#include "rounded/avx/panel.hpp"
#include "rounded/sizes.hpp"
#include "simd/element.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// A block of inputs of a panel's outputs. Those that there are not are zero.
struct WeightColumns {
  alignas(64) float numbers[kRoundedTogether][kPanelOutputs];

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

  // Zeros for inputs from the `first` on.
  void clear_from(int64_t first) {
    for (int64_t i = first; i < kRoundedTogether; ++i) {
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
