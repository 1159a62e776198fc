// Linear layers that lie behind each other, of which every row of inputs meets one.
#pragma once

#include <algorithm>
#include <cstdint>

#include "linear/contract.hpp"
#include "runtime/pool.hpp"
#include "sizes.hpp"
#include "winnow_native.h"

namespace winnow {

// Rows beside each other that are for the same layer.
struct Run {
  int64_t layer, first, count;
};

inline bool has_layers(const winnow_linear_stack& stack, const int64_t* layers, int64_t rows) {
  return std::all_of(layers, layers + rows, [&](int64_t layer) { return layer >= 0 && layer < stack.layers; });
}

// Writes all runs, which are as many as rows at the most, and returns how many they are.
inline int64_t find_runs(const int64_t* layers, int64_t rows, Run* to) {
  int64_t count = 0;
  for (int64_t row = 0; row < rows; ++row) {
    if (row == 0 || layers[row] != layers[row - 1]) to[count++] = {layers[row], row, 0};
    ++to[count - 1].count;
  }
  return count;
}

// Runs body(run, first, last) for all of so many outputs of every run, kOutputsAtOnce at a time; none are of two runs.
template <class Body>
void run_outputs(int threads, const Run* runs, int64_t number, int64_t outputs, const Body& body) {
  const int64_t padded = round_up(outputs, kOutputsAtOnce);
  run_pieces(threads, number * padded, kOutputsAtOnce, [&](int, int64_t first, int64_t last) {
    const int64_t before = first / padded * padded;
    body(runs[first / padded], first - before, least(last - before, outputs));
  });
}

inline winnow_linear_layer layer_of(const winnow_linear_stack& stack, int64_t layer) {
  const auto at = [&](const void* first, int64_t bytes) {
    return first ? static_cast<const char*>(first) + layer * bytes : nullptr;
  };
  winnow_linear_layer found = stack.first;
  found.weight = at(found.weight, stack.weight_bytes);
  found.scales = at(found.scales, stack.scales_bytes);
  found.bias = at(found.bias, stack.bias_bytes);
  return found;
}

}  // namespace winnow
