// A causal convolution: close to the definition in double precision, and states that are moved on exactly.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "bytes.hpp"
#include "known/compare.hpp"
#include "known/numbers.hpp"
#include "winnow_native.h"

// A channel's input at a token, counted from the first one: those before it are the states'.
inline double convolution_input(const winnow_convolution_args& args, const std::vector<double>& states, int64_t row,
                                int64_t channel, int64_t token) {
  if (token >= 0) return number_at(args.dtype, args.inputs, row * args.input_row + token * args.input_token + channel);
  return args.states ? states[(row * args.channels + channel) * args.state_length + args.state_length + token] : 0;
}

inline double convolution_sum(const winnow_convolution_args& args, const std::vector<double>& states, int64_t row,
                              int64_t channel, int64_t token) {
  double sum = args.bias ? number_at(args.dtype, args.bias, channel) : 0;
  for (int64_t k = 0; k < args.taps; ++k) {
    const double input = convolution_input(args, states, row, channel, token - args.taps + 1 + k);
    sum += input * number_at(args.dtype, args.weight, channel * args.taps + k);
  }
  return sum;
}

inline void check_convolution(Bytes& from, uint64_t seed) {
  Arrays arrays(seed);
  winnow_convolution_args args{};
  args.dtype = static_cast<int32_t>(from.below(3));
  args.threads = static_cast<int32_t>(from.among(1, 3));
  args.rows = from.below(4);
  args.tokens = from.coin() ? from.below(4) : from.below(200);
  args.channels = from.coin() ? from.among(1, 40) : from.among(200, 600);
  args.taps = from.among(2, WINNOW_TAPS);
  args.input_token = args.channels + from.below(9);
  args.input_row = args.tokens * args.input_token;
  args.inputs = arrays.numbers(args.dtype, args.rows * args.input_row, false);
  args.weight = arrays.numbers(args.dtype, args.channels * args.taps, false);
  if (from.coin()) args.bias = arrays.numbers(args.dtype, args.channels, false);
  std::vector<double> states;
  if (from.coin()) {
    args.state_length = args.taps - 1 + from.below(3);
    const int64_t numbers = args.rows * args.channels * args.state_length;
    args.states = arrays.numbers(args.dtype, numbers, false);
    states = numbers_at(args.dtype, args.states, numbers);
  }
  args.silu = from.coin();
  args.outputs = arrays.zeros<uint8_t>(args.rows * args.tokens * args.channels * bytes_of(args.dtype));
  expect(winnow_convolve(&args) == WINNOW_OK, "winnow_convolve refused");
  std::vector<double> outputs, moved;
  double largest = 1;
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t token = 0; token < args.tokens; ++token) {
      for (int64_t channel = 0; channel < args.channels; ++channel) {
        const double sum = convolution_sum(args, states, row, channel, token);
        largest = std::fmax(largest, std::fabs(sum));
        outputs.push_back(args.silu ? sum / (1 + std::exp(-sum)) : sum);
      }
    }
    for (int64_t each = 0; each < args.channels * args.state_length; ++each) {
      const int64_t token = args.tokens - args.state_length + each % args.state_length;
      moved.push_back(convolution_input(args, states, row, each / args.state_length, token));
    }
  }
  // What goes through SiLU was rounded before, and is up to 1.1 times as steep.
  const double rounding = args.silu ? 1.1 * std::ldexp(1.0, -1 - mantissa_bits(args.dtype)) : 0;
  expect_close(args.dtype, args.outputs, outputs, (rounding + 1e-5) * largest, "convolved");
  for (size_t i = 0; i < moved.size(); ++i) {
    expect(number_at(args.dtype, args.states, static_cast<int64_t>(i)) == moved[i], "a state is moved on wrongly");
  }
  args.taps = from.coin() ? 1 : WINNOW_TAPS + 1;
  expect(winnow_convolve(&args) == WINNOW_BAD_SIZE, "taps of another number are taken");
}
