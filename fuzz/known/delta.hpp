// Gated delta rule and Kimi Delta Attention: outputs and states close to those of the definition in double precision.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "bytes.hpp"
#include "known/compare.hpp"
#include "known/numbers.hpp"
#include "winnow_native.h"

// A token's query or key, as it counts.
inline std::vector<double> delta_channels(const winnow_delta_args& args, const void* data, int64_t first) {
  std::vector<double> found(static_cast<size_t>(args.key_dim));
  double squares = 1e-6;
  for (int64_t i = 0; i < args.key_dim; ++i) {
    found[i] = number_at(args.dtype, data, first + i);
    squares += found[i] * found[i];
  }
  for (double& each : found) each /= args.normalized ? std::sqrt(squares) : 1;
  return found;
}

// One token meets the state [key_dim, value_dim] of a value head; writes its output.
inline void expect_token(const winnow_delta_args& args, int64_t row, int64_t token, int64_t head, double* state,
                         double* output) {
  const int64_t of = head / (args.value_heads / args.key_heads) * args.key_dim, width = args.value_dim;
  const auto query = delta_channels(args, args.queries, row * args.query_row + token * args.query_token + of);
  const auto key = delta_channels(args, args.keys, row * args.key_row + token * args.key_token + of);
  const int64_t each = (row * args.tokens + token) * args.value_heads + head;
  const double rate = number_at(args.dtype, args.rates, each);
  const int64_t value = row * args.value_row + token * args.value_token + head * width;
  for (int64_t i = 0; i < args.key_dim; ++i) {
    const double decay = args.decays[args.per_channel ? each * args.key_dim + i : each];
    for (int64_t c = 0; c < width; ++c) state[i * width + c] *= std::exp(decay);
  }
  for (int64_t c = 0; c < width; ++c) {
    double known = 0;
    for (int64_t i = 0; i < args.key_dim; ++i) known += state[i * width + c] * key[i];
    const double change = (number_at(args.dtype, args.values, value + c) - known) * rate;
    output[c] = 0;
    for (int64_t i = 0; i < args.key_dim; ++i) {
      output[c] += (state[i * width + c] += key[i] * change) * query[i] / std::sqrt(static_cast<double>(args.key_dim));
    }
  }
}

inline void check_delta(Bytes& from, uint64_t seed) {
  Arrays arrays(seed);
  winnow_delta_args args{};
  args.dtype = static_cast<int32_t>(from.below(3));
  args.rows = from.below(4);
  args.tokens = from.coin() ? from.below(3) : from.below(40);
  args.key_heads = from.among(1, 3);
  args.value_heads = args.key_heads * from.among(1, 3);
  args.key_dim = from.coin() ? from.among(1, 80) : from.among(1, WINNOW_DELTA_KEYS);
  args.value_dim = from.among(1, 150);
  args.per_channel = from.coin();
  // Keys that are not divided by their length may be longer than 1: with larger rates states would grow without a bound.
  args.normalized = args.tokens > 5 || from.coin();
  const int64_t keys = args.key_heads * args.key_dim, values = args.value_heads * args.value_dim;
  args.query_token = keys + from.below(5);
  args.key_token = keys + from.below(5);
  args.value_token = values + from.below(5);
  args.query_row = args.tokens * args.query_token;
  args.key_row = args.tokens * args.key_token;
  args.value_row = args.tokens * args.value_token;
  args.queries = arrays.numbers(args.dtype, args.rows * args.query_row, false);
  args.keys = arrays.numbers(args.dtype, args.rows * args.key_row, false);
  args.values = arrays.numbers(args.dtype, args.rows * args.value_row, false);
  const int64_t heads = args.rows * args.value_heads, all = heads * args.tokens;
  args.rates = numbers_of_size(arrays, args.dtype, all, args.normalized ? -1 : -9);
  const int64_t logarithms = all * (args.per_channel ? args.key_dim : 1);
  float* decays = arrays.zeros<float>(logarithms);
  for (int64_t i = 0; i < logarithms; ++i) {
    const uint32_t drawn = arrays.random();
    decays[i] = drawn & 7 ? -static_cast<float>(drawn >> 3 & 1023) / 512 : drawn & 8 ? -INFINITY : -60.0f;
  }
  args.decays = decays;
  const int64_t state = args.key_dim * args.value_dim;
  args.states = static_cast<float*>(arrays.numbers(WINNOW_F32, heads * state, false));
  args.outputs = arrays.zeros<uint8_t>(all * args.value_dim * bytes_of(args.dtype));
  std::vector<double> states = numbers_at(WINNOW_F32, args.states, heads * state);
  std::vector<double> outputs(static_cast<size_t>(all * args.value_dim));
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t row = head / args.value_heads, of_row = head % args.value_heads;
    for (int64_t token = 0; token < args.tokens; ++token) {
      const int64_t each = (row * args.tokens + token) * args.value_heads + of_row;
      expect_token(args, row, token, of_row, states.data() + head * state, outputs.data() + each * args.value_dim);
    }
  }
  const winnow_call call{WINNOW_CALL_DELTA, 0, &args, {}};
  int64_t done = 0;
  expect(winnow_repeat(&call, 1, static_cast<int32_t>(from.among(1, 3)), &done) == WINNOW_OK, "winnow_delta refused");
  double largest = 1;
  for (double each : states) largest = std::fmax(largest, std::fabs(each));
  for (double each : outputs) largest = std::fmax(largest, std::fabs(each));
  expect_close(args.dtype, args.outputs, outputs, 1e-4 * largest, "an output");
  expect_close(WINNOW_F32, args.states, states, 1e-4 * largest, "a state");
  args.key_dim = WINNOW_DELTA_KEYS + 1;
  expect(winnow_delta(&args) == WINNOW_BAD_SIZE, "a key that is too wide is taken");
}
