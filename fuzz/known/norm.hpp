// A norm: close to the definition in double precision.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "bytes.hpp"
#include "known/compare.hpp"
#include "known/numbers.hpp"
#include "winnow_native.h"

inline void check_norm(Bytes& from, uint64_t seed) {
  Arrays arrays(seed);
  winnow_norm norm{};
  norm.dtype = static_cast<int32_t>(from.below(3));
  norm.width = from.among(1, 300);
  norm.weight = arrays.numbers(norm.dtype, norm.width, false);
  norm.epsilon = from.coin() ? 1e-6f : 0.1f;
  const int64_t rows = from.below(200);
  const int64_t numbers = rows * norm.width;
  void* inputs = arrays.numbers(norm.dtype, numbers, false);
  void* outputs = arrays.zeros<uint8_t>(numbers * bytes_of(norm.dtype));
  const auto threads = static_cast<int32_t>(from.among(1, 3));
  if (from.coin()) {
    void* others = arrays.numbers(norm.dtype, numbers, false);
    void* sums = arrays.zeros<uint8_t>(numbers * bytes_of(norm.dtype));
    const winnow_call call{WINNOW_CALL_NORMALIZE_SUMS, rows, &norm, {inputs, others, sums, outputs}};
    int64_t done = 0;
    expect(winnow_repeat(&call, 1, threads, &done) == WINNOW_OK && done == 1, "winnow_normalize_sums refused");
    std::vector<double> added;
    for (int64_t i = 0; i < numbers; ++i) added.push_back(number_at(norm.dtype, inputs, i) + number_at(norm.dtype, others, i));
    expect_close(norm.dtype, sums, added, 1e-6, "summed");
    inputs = sums;
  } else {
    expect(winnow_normalize(&norm, rows, inputs, outputs, threads) == WINNOW_OK, "winnow_normalize refused");
  }
  std::vector<double> expected;
  double largest = 0;
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t i = 0; i < norm.width; ++i) squares += std::pow(number_at(norm.dtype, inputs, r * norm.width + i), 2);
    const double root = std::sqrt(squares / norm.width + norm.epsilon);
    for (int64_t i = 0; i < norm.width; ++i) {
      const double number = number_at(norm.dtype, inputs, r * norm.width + i) / root;
      expected.push_back(number * number_at(norm.dtype, norm.weight, i));
      largest = std::fmax(largest, std::fabs(expected.back()));
    }
  }
  // Rounded once before it meets the weight; expect_close allows for the other time.
  constexpr double kRoundings[] = {0x1p-22, 0x1p-8, 0x1p-10};
  expect_close(norm.dtype, outputs, expected, kRoundings[norm.dtype] * largest, "normalized");
}
