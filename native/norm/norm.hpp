// Rows over the root of their mean square, times a weight, in one pass where torch takes eight.
#pragma once

#include <cmath>
#include <cstdint>

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

template <class T, bool kRoundsFirst>
void normalize_rows(const winnow_norm& norm, const void* inputs, void* outputs, int64_t first, int64_t last) {
  const T* weight = static_cast<const T*>(norm.weight);
  const int64_t width = norm.width;
  const Vec offset = broadcast(norm.offset);
  for (int64_t row = first; row < last; ++row) {
    const T* from = static_cast<const T*>(inputs) + row * width;
    T* to = static_cast<T*>(outputs) + row * width;
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
    if (i == width) continue;
    const int64_t rest = width - i;
    if constexpr (kRoundsFirst) {
      store_first(to + i, load_first(from + i, rest) * factor, rest);
      store_first(to + i, load_first(to + i, rest) * load_first(weight + i, rest), rest);
    } else {
      store_first(to + i, (load_first(from + i, rest) * factor) * (load_first(weight + i, rest) + offset), rest);
    }
  }
}

template <class T>
void normalize(const winnow_norm& norm, const void* inputs, void* outputs, int64_t first, int64_t last) {
  const auto rows = norm.rounds_first ? normalize_rows<T, true> : normalize_rows<T, false>;
  rows(norm, inputs, outputs, first, last);
}

}  // namespace
}  // namespace winnow
