// State scan: outputs and states close to those of the definition in double precision.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "bytes.hpp"
#include "known/compare.hpp"
#include "known/numbers.hpp"
#include "winnow_native.h"

// A token's step, which is not rounded in between.
inline double scan_step(const winnow_scan_args& args, int64_t row, int64_t token, int64_t head) {
  const double number = number_at(args.dtype, args.steps, row * args.step_row + token * args.step_token + head);
  const double moved = number + (args.biases ? args.biases[head] : 0);
  const double step = args.softplus ? std::log1p(std::exp(moved)) : moved;
  return std::fmin(std::fmax(step, args.least), args.most);
}

// One token meets the states [dim, state_dim] of a head; writes its outputs.
inline void expect_scanned(const winnow_scan_args& args, int64_t row, int64_t token, int64_t head, double* states,
                           double* outputs) {
  const int64_t group = head / (args.heads / args.groups) * args.state_dim;
  const int64_t input = row * args.input_row + token * args.input_token + head * args.dim;
  const int64_t enter = row * args.enter_row + token * args.enter_token + group;
  const int64_t leave = row * args.leave_row + token * args.leave_token + group;
  const double step = scan_step(args, row, token, head), kept = std::exp(step * args.rates[head]);
  for (int64_t p = 0; p < args.dim; ++p) {
    const double number = number_at(args.dtype, args.inputs, input + p);
    outputs[p] = args.through ? args.through[head] * number : 0;
    for (int64_t n = 0; n < args.state_dim; ++n) {
      double& state = states[p * args.state_dim + n];
      state = kept * state + step * number * number_at(args.dtype, args.enter, enter + n);
      outputs[p] += state * number_at(args.dtype, args.leave, leave + n);
    }
  }
}

// Strides of tokens with a gap behind each, and of rows.
inline const void* scan_numbers(Bytes& from, Arrays& arrays, const winnow_scan_args& args, int64_t width, int64_t& row,
                                int64_t& token) {
  token = width + from.below(5);
  row = args.tokens * token;
  return arrays.numbers(args.dtype, args.rows * row, false);
}

// Numbers of fp32 in eighths, which all dtypes have, from `first` on.
inline float* scan_eighths(Arrays& arrays, int64_t count, float first) {
  float* made = arrays.zeros<float>(count);
  for (int64_t i = 0; i < count; ++i) made[i] = first + static_cast<float>(arrays.random() & 7) / 8;
  return made;
}

inline void check_scan(Bytes& from, uint64_t seed) {
  Arrays arrays(seed);
  winnow_scan_args args{};
  args.dtype = static_cast<int32_t>(from.below(3));
  args.rows = from.below(4);
  args.tokens = from.coin() ? from.below(6) : from.below(40);
  args.groups = from.among(1, 3);
  args.heads = args.groups * from.among(1, 3);
  args.dim = from.among(1, 150);
  args.state_dim = from.coin() ? from.among(1, 80) : from.among(1, WINNOW_SCAN_STATE);
  args.inputs = scan_numbers(from, arrays, args, args.heads * args.dim, args.input_row, args.input_token);
  args.steps = scan_numbers(from, arrays, args, args.heads, args.step_row, args.step_token);
  args.enter = scan_numbers(from, arrays, args, args.groups * args.state_dim, args.enter_row, args.enter_token);
  args.leave = scan_numbers(from, arrays, args, args.groups * args.state_dim, args.leave_row, args.leave_token);
  // Steps of half precision are rounded after what is done to them, by which a number in double precision may miss them.
  args.softplus = args.dtype == WINNOW_F32 && from.coin();
  args.biases = args.dtype == WINNOW_F32 && from.coin() ? scan_eighths(arrays, args.heads, 0) : nullptr;
  args.through = from.coin() ? scan_eighths(arrays, args.heads, 0) : nullptr;
  args.least = from.coin() ? 0.0f : 0.25f;
  args.most = from.coin() ? INFINITY : 1.5f;
  float* rates = scan_eighths(arrays, args.heads, -1);
  if (from.coin()) rates[from.below(args.heads)] = from.coin() ? -1e4f : 0.0f;
  args.rates = rates;
  const int64_t heads = args.rows * args.heads, all = heads * args.tokens * args.dim, state = args.dim * args.state_dim;
  args.outputs_f32 = from.coin();
  const int32_t of_outputs = args.outputs_f32 ? static_cast<int32_t>(WINNOW_F32) : args.dtype;
  args.states = static_cast<float*>(arrays.numbers(WINNOW_F32, heads * state, false));
  args.outputs = arrays.zeros<uint8_t>(all * bytes_of(of_outputs));
  std::vector<double> states = numbers_at(WINNOW_F32, args.states, heads * state);
  std::vector<double> outputs(static_cast<size_t>(all));
  for (int64_t each = 0; each < heads; ++each) {
    const int64_t row = each / args.heads, head = each % args.heads;
    for (int64_t token = 0; token < args.tokens; ++token) {
      const int64_t at = ((row * args.tokens + token) * args.heads + head) * args.dim;
      expect_scanned(args, row, token, head, states.data() + each * state, outputs.data() + at);
    }
  }
  const winnow_call call{WINNOW_CALL_SCAN, 0, &args, {}};
  int64_t done = 0;
  expect(winnow_repeat(&call, 1, static_cast<int32_t>(from.among(1, 3)), &done) == WINNOW_OK, "winnow_scan refused");
  double largest = 1;
  for (double each : states) largest = std::fmax(largest, std::fabs(each));
  for (double each : outputs) largest = std::fmax(largest, std::fabs(each));
  expect_close(of_outputs, args.outputs, outputs, 1e-4 * largest, "an output");
  expect_close(WINNOW_F32, args.states, states, 1e-4 * largest, "a state");
  args.state_dim = WINNOW_SCAN_STATE + 1;
  expect(winnow_scan(&args) == WINNOW_BAD_SIZE, "a state that is too large is taken");
}
