// A linear layer, with weights as they are, of 8 bits and of 4 to 6: close to sums in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "bytes.hpp"
#include "known/compare.hpp"
#include "known/gate.hpp"
#include "known/numbers.hpp"
#include "winnow_native.h"

// The number of 4 to 6 bits of input i in output o, where so many outputs lie beside each other.
inline int level_at(const winnow_linear_layer& layer, int64_t together, int64_t o, int64_t i) {
  const int64_t half = together / 2, within = o % half, input = i % WINNOW_SCALE_GROUP, bits = layer.bits - 4;
  const auto* group = static_cast<const uint8_t*>(layer.weight) +
                      (o / together * together * layer.inputs + i / WINNOW_SCALE_GROUP * WINNOW_SCALE_GROUP * together) *
                          layer.bits / 8;
  const bool second = o % together >= half;
  const int low = group[input * half + within] >> (second ? 4 : 0) & 15;
  if (bits == 0) return low;
  const int64_t beside = together == 64 ? 2 : 1, sharing = 4 / bits * beside;
  const int64_t place = input % sharing / beside, one = input % beside;
  const int64_t byte = beside == 1 ? within : within / 2 * 4 + 2 * one + within % 2;
  constexpr int64_t kLowest[] = {4, 0, 6, 2};
  const int64_t lowest = kLowest[place] + (second ? bits : 0);
  const uint8_t all = group[WINNOW_SCALE_GROUP * half + input / sharing * half * beside + byte];
  return low + 16 * (all >> lowest & ((1 << bits) - 1));
}

// The weight of input i in output o.
inline double weight_at(const winnow_linear_layer& layer, int64_t o, int64_t i) {
  const int64_t place = o * layer.inputs + i;
  if (layer.bits == 16) return number_at(layer.dtype, layer.weight, place);
  if (layer.bits == 8) return static_cast<const int8_t*>(layer.weight)[place] * number_at(layer.dtype, layer.scales, o);
  // Where none are multiplied, those of 4 bits are written out.
  const int64_t read = winnow_nibble_outputs(layer.dtype), together = read ? read : WINNOW_LINEAR_OUTPUTS;
  const int number = level_at(layer, together, o, i);
  if (layer.bits == 6) return (number - 32) * number_at(layer.dtype, layer.scales, i / 16 * layer.outputs + o);
  const int64_t pair = 2 * (i / WINNOW_SCALE_GROUP * layer.outputs + o);
  const double scale = number_at(layer.dtype, layer.scales, pair), middle = number_at(layer.dtype, layer.scales, pair + 1);
  return (number - (1 << (layer.bits - 1))) * scale + middle;
}

inline winnow_linear_layer linear_layer(Bytes& from, Arrays& arrays) {
  constexpr int32_t kBits[] = {16, 8, 6, 5, 4};
  winnow_linear_layer layer{};
  layer.bits = kBits[from.below(5)];
  layer.dtype = layer.bits < 8 ? static_cast<int32_t>(WINNOW_BF16) : static_cast<int32_t>(from.below(3));
  if (layer.bits < 8) {
    layer.inputs = WINNOW_SCALE_GROUP * from.among(1, 9);
    layer.outputs = WINNOW_LINEAR_OUTPUTS * from.among(1, 3);
    layer.weight = arrays.noise(layer.inputs * layer.outputs * layer.bits / 8);
    // A scale for 16 inputs, or a scale and a middle for 32.
    layer.scales = arrays.numbers(layer.dtype, layer.inputs / WINNOW_SCALE_GROUP * layer.outputs * 2, false);
  } else {
    // So many inputs that those of several rows are cut into blocks, at times, and even those of one.
    layer.inputs = from.below(8) ? from.among(1, 200) : from.among(1000, 8000);
    layer.outputs = from.below(200);
    const int64_t count = layer.inputs * layer.outputs;
    layer.weight = layer.bits == 8 ? arrays.noise(count) : arrays.numbers(layer.dtype, count, false);
    if (layer.bits == 8) layer.scales = arrays.numbers(layer.dtype, layer.outputs, false);
  }
  if (from.coin()) layer.bias = arrays.numbers(layer.dtype, layer.outputs, false);
  return layer;
}

// Part of the outputs of a weight of 4 bits, written out.
inline void check_written_out(const winnow_linear_layer& layer, Bytes& from, Arrays& arrays) {
  const int64_t blocks = layer.outputs / WINNOW_LINEAR_OUTPUTS;
  const int64_t first = from.below(blocks + 1), last = first + from.below(blocks - first + 1);
  const int64_t begin = first * WINNOW_LINEAR_OUTPUTS, end = last * WINNOW_LINEAR_OUTPUTS;
  void* to = arrays.zeros<uint8_t>(layer.inputs * (end - begin) * bytes_of(WINNOW_BF16));
  const int32_t status = winnow_write_out(&layer, begin, end, to, static_cast<int32_t>(from.among(1, 3)));
  if (status == WINNOW_UNKNOWN_ISA) return;
  expect(status == WINNOW_OK, "winnow_write_out refused");
  expect(layer.bits == 4, "winnow_write_out took other bits");
  std::vector<double> expected;
  for (int64_t i = 0; i < layer.inputs; ++i) {
    for (int64_t o = begin; o < end; ++o) expected.push_back(weight_at(layer, o, i));
  }
  // Rounded to fp32 before it is to bf16.
  double largest = 0;
  for (const double each : expected) largest = std::max(largest, std::fabs(each));
  expect_close(WINNOW_BF16, to, expected, largest * 0x1p-24, "a weight written out");
}

// Another layer of the same shape.
inline winnow_linear_layer like(const winnow_linear_layer& layer, Arrays& arrays) {
  winnow_linear_layer made = layer;
  const int64_t count = layer.inputs * layer.outputs;
  made.weight = layer.bits == 16 ? arrays.numbers(layer.dtype, count, false) : arrays.noise(count * layer.bits / 8);
  return made;
}

// A gate, from what both layers give by themselves.
inline void check_gated(Bytes& from, uint64_t seed) {
  Arrays arrays(seed);
  winnow_gated_layers layers{};
  layers.gate = linear_layer(from, arrays);
  layers.up = like(layers.gate, arrays);
  layers.by = gate_from(from);
  const int32_t dtype = layers.up.dtype, threads = static_cast<int32_t>(from.among(1, 3));
  const int64_t rows = from.below(20), count = rows * layers.up.outputs;
  const void* inputs = arrays.numbers(dtype, rows * layers.up.inputs, false);
  void* outputs = arrays.zeros<uint8_t>(count * bytes_of(dtype));
  const int32_t status = winnow_gated(&layers, rows, inputs, outputs, threads);
  if (layers.up.bits < 8 && status == WINNOW_UNKNOWN_ISA) return;
  expect(status == WINNOW_OK, "winnow_gated refused");
  winnow_gated_layers none = layers;
  none.by = undefined(layers.by, from);
  expect(winnow_gated(&none, rows, inputs, nullptr, threads) == WINNOW_BAD_GATE, "winnow_gated took a gate that there is not");
  void* gates = arrays.zeros<uint8_t>(count * bytes_of(dtype));
  void* ups = arrays.zeros<uint8_t>(count * bytes_of(dtype));
  winnow_linear(&layers.gate, rows, inputs, gates, threads);
  winnow_linear(&layers.up, rows, inputs, ups, threads);
  for (int64_t i = 0; i < count; ++i) {
    const double gate = number_at(dtype, gates, i), up = number_at(dtype, ups, i);
    const double activated = activation_of(layers.by, gate), met = met_by(layers.by, up), expected = activated * met;
    // What is added may cancel. Numbers beyond those of fp16 are infinite, and below 2^-14 its steps are no smaller.
    const double offset = std::fabs(layers.by.offset), sizes = std::fabs(up) + offset * (1 + std::fabs(activated));
    const double step = dtype == WINNOW_F16 ? 0x1p-24 : 0;
    const double error = std::fabs(expected) * (std::ldexp(1.1, -mantissa_bits(dtype)) + 1e-6) + sizes * 1e-6 + step;
    const double found = number_at(dtype, outputs, i);
    if (dtype == WINNOW_F16 && std::fabs(expected) > 65000) continue;
    expect(std::fabs(found - expected) <= error, "gated number " + std::to_string(i) + " is " + std::to_string(found) +
                                                     " and not " + std::to_string(expected) + ", of a gate " +
                                                     std::to_string(gate) + " of " + std::to_string(up));
  }
}

// From so many rows on, numbers are rounded where winnow_multiplies_many says so: with AMX those of less than 8 bits to bf16,
// on AMD's processors with AVX-512 inputs that meet a weight of few bits to bytes, elsewhere all to whole numbers of 16 bits.
// With AVX2, inputs that meet a weight of 4 bits become bytes, and fewer of them whole numbers of 16 bits.
constexpr int64_t kManyRows = 33;

// The most that an output is off by for that: half a step for every number. 127 steps are the largest input; of 16 bits 8,191,
// and 4,095 the largest weight; 32,767 where that is not rounded.
inline double lost_by_rounding(const winnow_linear_layer& layer, int64_t rows, double input, double weight) {
  if (!winnow_multiplies_many(layer.dtype)) return 0;
  const auto inputs = static_cast<double>(layer.inputs);
  if (!std::strcmp(winnow_isa(), "avx2") && layer.bits == 4) {
    return inputs * weight * input / (rows < kManyRows ? 32767 : 127) * 0.5001;
  }
  if (rows < kManyRows) return 0;
  if (!std::strcmp(winnow_isa(), "amx")) return layer.bits >= 8 ? 0 : inputs * weight * input / 256;
  if (!std::strncmp(winnow_isa(), "zen", 3)) return layer.bits == 16 ? 0 : inputs * weight * input / 127 * 0.5001;
  const double input_step = input / 8191, weight_step = weight / 4095;
  return inputs * (input * weight_step + weight * input_step + input_step * weight_step) / 2;
}

inline void check_linear(Bytes& from, uint64_t seed) {
  Arrays arrays(seed);
  const winnow_linear_layer layer = linear_layer(from, arrays);
  check_written_out(layer, from, arrays);
  const int64_t rows = layer.inputs < 1000 ? from.below(70) : from.below(10);
  const void* inputs = arrays.numbers(layer.dtype, rows * layer.inputs, false);
  void* outputs = arrays.zeros<uint8_t>(rows * layer.outputs * bytes_of(layer.dtype));
  const int32_t status = winnow_linear(&layer, rows, inputs, outputs, static_cast<int32_t>(from.among(1, 3)));
  if (layer.bits < 8 && status == WINNOW_UNKNOWN_ISA) return;
  expect(status == WINNOW_OK, "winnow_linear refused");
  std::vector<double> expected, row(static_cast<size_t>(layer.inputs));
  double largest = 0, largest_input = 0, largest_weight = 0;
  for (int64_t o = 0; o < layer.outputs; ++o) {
    for (int64_t i = 0; i < layer.inputs; ++i) {
      row[i] = weight_at(layer, o, i);
      largest_weight = std::max(largest_weight, std::fabs(row[i]));
    }
    for (int64_t r = 0; r < rows; ++r) {
      double sum = layer.bias ? number_at(layer.dtype, layer.bias, o) : 0, sizes = std::fabs(sum);
      for (int64_t i = 0; i < layer.inputs; ++i) {
        const double input = number_at(layer.dtype, inputs, r * layer.inputs + i), product = row[i] * input;
        sum += product;
        sizes += std::fabs(product);
        largest_input = std::max(largest_input, std::fabs(input));
      }
      largest = std::max(largest, sizes);
      expected.push_back(sum);
    }
  }
  // Of every output all rows, as they were found.
  std::vector<double> turned(expected.size());
  for (int64_t o = 0; o < layer.outputs; ++o) {
    for (int64_t r = 0; r < rows; ++r) turned[r * layer.outputs + o] = expected[o * rows + r];
  }
  // 4 and 5 bits: a number and its middle may cancel, so that their sum is smaller than what was rounded.
  const double error = (layer.bits < 6 ? 64 : 1) * largest * std::min<double>(layer.inputs, 256) * 0x1p-24;
  const double lost = lost_by_rounding(layer, rows, largest_input, largest_weight);
  expect_close(layer.dtype, outputs, turned, error + lost, std::to_string(layer.bits) + " bits, outputs");
}
