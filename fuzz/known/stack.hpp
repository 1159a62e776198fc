// Linear layers behind each other: every run of rows as its layer gives it by itself, to the bit.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "bytes.hpp"
#include "known/compare.hpp"
#include "known/linear.hpp"
#include "known/numbers.hpp"
#include "winnow_native.h"

// As many layers of a shape, with random numbers.
inline winnow_linear_stack stack_of(const winnow_linear_layer& shape, int64_t layers, Arrays& arrays) {
  const int64_t values = shape.inputs * shape.outputs, width = bytes_of(shape.dtype);
  const int64_t scales = shape.bits == 8 ? shape.outputs : values / WINNOW_SCALE_GROUP * 2;
  winnow_linear_stack stack{};
  stack.first = shape;
  stack.layers = layers;
  stack.weight_bytes = shape.bits == 16 ? values * width : values * shape.bits / 8;
  stack.first.weight = shape.bits == 16 ? arrays.numbers(shape.dtype, layers * values, false)
                                        : arrays.noise(layers * stack.weight_bytes);
  if (shape.scales) {
    stack.scales_bytes = scales * width;
    stack.first.scales = arrays.numbers(shape.dtype, layers * scales, false);
  }
  if (shape.bias) {
    stack.bias_bytes = shape.outputs * width;
    stack.first.bias = arrays.numbers(shape.dtype, layers * shape.outputs, false);
  }
  return stack;
}

inline winnow_linear_layer layer_at(const winnow_linear_stack& stack, int64_t layer) {
  const auto behind = [&](const void* first, int64_t bytes) {
    return first ? static_cast<const char*>(first) + layer * bytes : nullptr;
  };
  winnow_linear_layer found = stack.first;
  found.weight = behind(found.weight, stack.weight_bytes);
  found.scales = behind(found.scales, stack.scales_bytes);
  found.bias = behind(found.bias, stack.bias_bytes);
  return found;
}

inline void check_stack(Bytes& from, uint64_t seed) {
  Arrays arrays(seed);
  const winnow_linear_stack stack = stack_of(linear_layer(from, arrays), from.among(1, 4), arrays);
  const winnow_linear_layer& shape = stack.first;
  const int64_t rows = from.below(50), width = bytes_of(shape.dtype);
  auto* layers = arrays.zeros<int64_t>(rows);
  for (int64_t r = 0; r < rows; ++r) layers[r] = r && from.below(4) ? layers[r - 1] : from.below(stack.layers);
  const auto* inputs = static_cast<char*>(arrays.numbers(shape.dtype, rows * shape.inputs, false));
  auto* outputs = arrays.zeros<char>(rows * shape.outputs * width);
  const auto threads = static_cast<int32_t>(from.among(1, 3));
  const int32_t status = winnow_linear_of_stack(&stack, rows, layers, inputs, outputs, threads);
  if (shape.bits < 8 && status == WINNOW_UNKNOWN_ISA) return;
  expect(status == WINNOW_OK, "winnow_linear_of_stack refused");
  for (int64_t first = 0, last = 0; first < rows; first = last) {
    while (last < rows && layers[last] == layers[first]) ++last;
    const winnow_linear_layer layer = layer_at(stack, layers[first]);
    const int64_t bytes = (last - first) * shape.outputs * width;
    auto* alone = arrays.zeros<char>(bytes);
    winnow_linear(&layer, last - first, inputs + first * shape.inputs * width, alone, 1);
    expect(!std::memcmp(alone, outputs + first * shape.outputs * width, static_cast<size_t>(bytes)),
           "rows from " + std::to_string(first) + " on are not those of their layer");
  }
  if (rows == 0) return;
  layers[rows - 1] = from.coin() ? stack.layers : -1;
  expect(winnow_linear_of_stack(&stack, rows, layers, inputs, outputs, threads) == WINNOW_BAD_LAYER,
         "winnow_linear_of_stack took the number of no layer");
}
