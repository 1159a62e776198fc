// Experts of a mixture: every token close to what its experts' layers give one after another.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "bytes.hpp"
#include "known/compare.hpp"
#include "known/gate.hpp"
#include "known/linear.hpp"
#include "known/numbers.hpp"
#include "known/stack.hpp"
#include "winnow_native.h"

// A layer of a shape, whose parameters are there or not and are no numbers.
inline winnow_linear_layer shape_of(int64_t outputs, int64_t inputs, int32_t bits, int32_t dtype, bool bias) {
  static const char present = 0;
  winnow_linear_layer shape{};
  shape.outputs = outputs, shape.inputs = inputs, shape.bits = bits, shape.dtype = dtype;
  shape.scales = bits == 16 ? nullptr : &present;
  shape.bias = bias ? &present : nullptr;
  return shape;
}

// An expert's outputs for a token in double precision, and how far rounding between its layers may take each.
struct Expert {
  std::vector<double> found, room;

  Expert(const winnow_mixture& mixture, int64_t expert, const void* input, Arrays& arrays)
      : found(static_cast<size_t>(mixture.leave.first.outputs)), room(found.size()) {
    const winnow_linear_layer enter = layer_at(mixture.enter, expert), leave = layer_at(mixture.leave, expert);
    void* entered = arrays.zeros<uint8_t>(enter.outputs * bytes_of(enter.dtype));
    winnow_linear(&enter, 1, input, entered, 1);
    std::vector<double> inner(static_cast<size_t>(leave.inputs));
    for (int64_t i = 0; i < leave.inputs; ++i) {
      const int64_t gate = mixture.interleaved ? 2 * i : i, up = mixture.interleaved ? 2 * i + 1 : leave.inputs + i;
      inner[i] = activation_of(mixture.gate, number_at(enter.dtype, entered, gate)) *
                 met_by(mixture.gate, number_at(enter.dtype, entered, up));
    }
    for (int64_t o = 0; o < leave.outputs; ++o) {
      double sizes = 0;
      for (int64_t i = 0; i < leave.inputs; ++i) {
        const double product = inner[i] * weight_at(leave, o, i);
        found[o] += product;
        sizes += std::fabs(product);
      }
      const double bias = leave.bias ? number_at(leave.dtype, leave.bias, o) : 0;
      found[o] += bias;
      // Two roundings of what is between, one of the output, and sums in fp32.
      room[o] = (sizes + std::fabs(bias)) * (std::ldexp(4.0, -mantissa_bits(leave.dtype)) + 1e-4);
    }
  }
};

inline void check_mix(Bytes& from, uint64_t seed) {
  Arrays arrays(seed);
  constexpr int32_t kBits[] = {16, 8, 6, 5, 4};
  const int32_t bits = kBits[from.below(5)];
  const auto dtype = static_cast<int32_t>(bits < 8 ? int64_t{WINNOW_BF16} : from.below(3));
  const bool interleaved = from.coin();
  const int64_t inner = bits < 8 ? (interleaved ? 32 : 64) * from.among(1, 2) : from.among(1, 90);
  const int64_t width = bits < 8 ? 64 * from.among(1, 2) : from.among(1, 90);
  const int64_t number = from.among(1, 5), tokens = from.below(7);
  const bool bias = from.coin();
  winnow_mixture mixture{};
  mixture.gate = gate_from(from);
  mixture.interleaved = interleaved;
  mixture.enter = stack_of(shape_of(2 * inner, width, bits, dtype, bias), number, arrays);
  mixture.leave = stack_of(shape_of(width, inner, bits, dtype, bias), number, arrays);
  mixture.chosen = from.among(1, number);
  const int64_t rows = tokens * mixture.chosen, bytes = bytes_of(dtype);
  auto* experts = arrays.zeros<int64_t>(rows);
  auto* weights = arrays.zeros<float>(rows);
  for (int64_t r = 0; r < rows; ++r) {
    experts[r] = from.below(number);
    weights[r] = static_cast<float>(from.below(100)) / 100;
  }
  const auto* inputs = static_cast<char*>(arrays.numbers(dtype, tokens * width, false));
  auto* outputs = arrays.zeros<char>(tokens * width * bytes);
  const int32_t status =
      winnow_mix(&mixture, tokens, experts, weights, inputs, outputs, static_cast<int32_t>(from.among(1, 3)));
  if (bits < 8 && status == WINNOW_UNKNOWN_ISA) return;
  expect(status == WINNOW_OK, "winnow_mix refused");
  winnow_mixture none = mixture;
  none.gate = undefined(mixture.gate, from);
  expect(winnow_mix(&none, tokens, experts, weights, inputs, nullptr, 1) == WINNOW_BAD_GATE,
         "winnow_mix took a gate that there is not");
  for (int64_t token = 0; token < tokens; ++token) {
    std::vector<double> sums(static_cast<size_t>(width)), room(sums.size());
    for (int64_t i = token * mixture.chosen; i < (token + 1) * mixture.chosen; ++i) {
      const Expert expert(mixture, experts[i], inputs + token * width * bytes, arrays);
      for (int64_t o = 0; o < width; ++o) {
        sums[o] += weights[i] * expert.found[o];
        room[o] += weights[i] * expert.room[o];
      }
    }
    for (int64_t o = 0; o < width; ++o) {
      const double found = number_at(dtype, outputs, token * width + o);
      // Numbers beyond those of fp16 are infinite.
      if (dtype == WINNOW_F16 && !std::isfinite(found)) continue;
      const double error = room[o] + std::fabs(sums[o]) * std::ldexp(1.1, -mantissa_bits(dtype)) + 1e-6;
      expect(std::fabs(found - sums[o]) <= error, "output " + std::to_string(o) + " of token " + std::to_string(token) +
                                                      " is " + std::to_string(found) + " and not " +
                                                      std::to_string(sums[o]));
    }
  }
}
