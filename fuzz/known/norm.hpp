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
  const void* inputs = arrays.numbers(norm.dtype, rows * norm.width, false);
  void* outputs = arrays.zeros<uint8_t>(rows * norm.width * bytes_of(norm.dtype));
  const int32_t status = winnow_normalize(&norm, rows, inputs, outputs, static_cast<int32_t>(from.among(1, 3)));
  expect(status == WINNOW_OK, "winnow_normalize refused");
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
