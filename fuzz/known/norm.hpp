// A norm: close to the definition in double precision, with gates and without.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "bytes.hpp"
#include "known/compare.hpp"
#include "known/numbers.hpp"
#include "winnow_native.h"

struct NormCase {
  winnow_norm norm;
  int64_t rows;
  int32_t threads;
  void *inputs, *outputs;

  int64_t numbers() const { return rows * norm.width; }
};

inline void* like_rows(Arrays& arrays, const NormCase& of) {
  return arrays.numbers(of.norm.dtype, of.numbers(), false);
}

// Has the library make a call of them, as graphs have.
inline void call_again(NormCase& of, int32_t function, void* second, void* third, void* fourth) {
  const winnow_call call{function, of.rows, &of.norm, {of.inputs, second, third, fourth}};
  int64_t done = 0;
  expect(winnow_repeat(&call, 1, of.threads, &done) == WINNOW_OK && done == 1, "a norm is refused");
}

// Normalizes sums with others, which then take the place of the inputs.
inline void normalize_sums(NormCase& of, Arrays& arrays) {
  const int32_t dtype = of.norm.dtype;
  void *others = like_rows(arrays, of), *sums = arrays.zeros<uint8_t>(of.numbers() * bytes_of(dtype));
  call_again(of, WINNOW_CALL_NORMALIZE_SUMS, others, sums, of.outputs);
  std::vector<double> added;
  for (int64_t i = 0; i < of.numbers(); ++i) added.push_back(number_at(dtype, of.inputs, i) + number_at(dtype, others, i));
  expect_close(dtype, sums, added, 1e-6, "summed");
  of.inputs = sums;
}

inline void check_norm(Bytes& from, uint64_t seed) {
  Arrays arrays(seed);
  NormCase of{};
  winnow_norm& norm = of.norm;
  norm.dtype = static_cast<int32_t>(from.below(3));
  norm.width = from.among(1, 300);
  norm.weight = arrays.numbers(norm.dtype, norm.width, false);
  norm.epsilon = from.coin() ? 1e-6f : 0.1f;
  of.rows = from.below(200);
  of.inputs = like_rows(arrays, of);
  of.outputs = arrays.zeros<uint8_t>(of.numbers() * bytes_of(norm.dtype));
  of.threads = static_cast<int32_t>(from.among(1, 3));
  const void* gates = nullptr;
  if (from.coin()) {
    normalize_sums(of, arrays);
  } else if (from.coin()) {
    void* drawn = like_rows(arrays, of);
    call_again(of, WINNOW_CALL_NORMALIZE_GATED, drawn, of.outputs, nullptr);
    gates = drawn;
  } else {
    expect(winnow_normalize(&norm, of.rows, of.inputs, of.outputs, of.threads) == WINNOW_OK, "winnow_normalize refused");
  }
  std::vector<double> expected;
  double largest = 0;
  for (int64_t r = 0; r < of.rows; ++r) {
    double squares = 0;
    for (int64_t i = 0; i < norm.width; ++i) squares += std::pow(number_at(norm.dtype, of.inputs, r * norm.width + i), 2);
    const double root = std::sqrt(squares / norm.width + norm.epsilon);
    for (int64_t i = 0; i < norm.width; ++i) {
      const int64_t at = r * norm.width + i;
      const double gate = gates ? number_at(norm.dtype, gates, at) : 0;
      const double by = gates ? gate / (1 + std::exp(-gate)) : 1;
      expected.push_back(by * number_at(norm.dtype, of.inputs, at) / root * number_at(norm.dtype, norm.weight, i));
      largest = std::fmax(largest, std::fabs(expected.back()));
    }
  }
  // Rounded once before it meets the weight, and once before a gate; expect_close allows for the last time.
  constexpr double kRoundings[] = {0x1p-22, 0x1p-8, 0x1p-10};
  expect_close(norm.dtype, of.outputs, expected, (gates ? 2 : 1) * kRoundings[norm.dtype] * largest, "normalized");
}
