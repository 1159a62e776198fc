// Rows over the root of their mean square, times a weight, in one pass where torch takes eight.
#pragma once

#include <cmath>
#include <cstdint>

#include "linear/gate.hpp"
#include "norm/contract.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// The sum of the squares of a row's numbers. Four sums, so that none waits for itself.
template <class T>
inline float sum_of_squares(const T* row, int64_t width) {
  constexpr int kSums = 4;
  Vec sums[kSums];
  for (Vec& sum : sums) sum = broadcast(0.0f);
  int64_t i = 0;
  for (; i + kSums * Vec::width <= width; i += kSums * Vec::width) {
    unroll<kSums>([&](auto s) __attribute__((always_inline)) {
      const Vec numbers = load(row + i + s * Vec::width);
      sums[s] = fma(numbers, numbers, sums[s]);
    });
  }
  for (; i < width; i += Vec::width) {
    const Vec numbers = load_up_to(row + i, width - i);
    sums[0] = fma(numbers, numbers, sums[0]);
  }
  return lane_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

template <class T>
inline void add_up_row(const T* one, const T* other, T* to, int64_t width) {
  for (int64_t i = 0; i < width; i += Vec::width) {
    const int64_t rest = width - i;
    store_up_to(to + i, load_up_to(one + i, rest) + load_up_to(other + i, rest), rest);
  }
}

template <class T>
inline void gate_row(T* row, const T* gates, int64_t width) {
  for (int64_t i = 0; i < width; i += Vec::width) {
    const int64_t rest = width - i;
    store_up_to(row + i, load_up_to(row + i, rest) * swish(load_up_to(gates + i, rest), 1.0f), rest);
  }
}

template <class T, bool kRoundsFirst>
inline void normalize_row(const winnow_norm& norm, const T* from, T* to) {
  const T* weight = static_cast<const T*>(norm.weight);
  const int64_t width = norm.width;
  const Vec offset = broadcast(norm.offset);
  const float mean = sum_of_squares(from, width) / static_cast<float>(width);
  const Vec factor = broadcast(1.0f / std::sqrt(mean + norm.epsilon));
  int64_t i = 0;
  for (; i + Vec::width <= width; i += Vec::width) {
    if constexpr (kRoundsFirst) {
      store(to + i, load(from + i) * factor);
      store(to + i, load(to + i) * load(weight + i));
    } else {
      store(to + i, (load(from + i) * factor) * (load(weight + i) + offset));
    }
  }
  if (i == width) return;
  const int64_t rest = width - i;
  if constexpr (kRoundsFirst) {
    store_first(to + i, load_first(from + i, rest) * factor, rest);
    store_first(to + i, load_first(to + i, rest) * load_first(weight + i, rest), rest);
  } else {
    store_first(to + i, (load_first(from + i, rest) * factor) * (load_first(weight + i, rest) + offset), rest);
  }
}

template <class T, bool kRoundsFirst>
void normalize_rows(const winnow_norm& norm, const NormRows& rows, int64_t first, int64_t last) {
  const int64_t width = norm.width;
  for (int64_t row = first; row < last; ++row) {
    const int64_t at = row * width;
    const T* from = static_cast<const T*>(rows.inputs) + at;
    T* to = static_cast<T*>(rows.outputs) + at;
    if (rows.others) {
      T* sum = static_cast<T*>(rows.sums) + at;
      add_up_row(from, static_cast<const T*>(rows.others) + at, sum, width);
      from = sum;
    }
    normalize_row<T, kRoundsFirst>(norm, from, to);
    if (rows.gates) gate_row(to, static_cast<const T*>(rows.gates) + at, width);
  }
}

template <class T>
void normalize(const winnow_norm& norm, const NormRows& rows, int64_t first, int64_t last) {
  const auto function = norm.rounds_first ? normalize_rows<T, true> : normalize_rows<T, false>;
  function(norm, rows, first, last);
}

}  // namespace
}  // namespace winnow
