// Sums of a row -> its outputs.
#pragma once

#include <cstdint>

#include "linear/contract.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// The outputs [first, last) of a row: sums, times a scale of each unless there are none, with the bias added.
template <class T>
inline void finish(const winnow_linear_layer& layer, const float* sums, const void* scales, const LinearRows& all,
                   int64_t row, int64_t first, int64_t last) {
  const T *scale = static_cast<const T*>(scales), *bias = static_cast<const T*>(layer.bias);
  T* to = outputs_of<T>(layer, all, row, first);
  for (int64_t o = first; o < last; o += Vec::width, sums += Vec::width, to += Vec::width) {
    const int64_t rest = last - o;
    const Vec added = bias ? load_up_to(bias + o, rest) : broadcast(0.0f);
    const Vec found = fma(load(sums), scale ? load_up_to(scale + o, rest) : broadcast(1.0f), added);
    store_up_to(to, found, rest);
  }
}

// Rows ahead of which those that outputs are written to are asked for: each lies in another page.
constexpr int64_t kFinishedAhead = 8;

// The outputs [first, first + kOutputsAtOnce) of all rows.
template <class T>
inline void finish_whole(const winnow_linear_layer& layer, const float (*sums)[kOutputsAtOnce], const void* scales,
                         const LinearRows& all, int64_t first) {
  constexpr int kVectors = static_cast<int>(kOutputsAtOnce / Vec::width);
  const T *scale = static_cast<const T*>(scales), *bias = static_cast<const T*>(layer.bias);
  Vec times[kVectors], added[kVectors];
  unroll<kVectors>([&](auto v) {
    times[v] = scale ? load(scale + first + v * Vec::width) : broadcast(1.0f);
    added[v] = bias ? load(bias + first + v * Vec::width) : broadcast(0.0f);
  });
  for (int64_t row = 0; row < all.count; ++row) {
    T* to = outputs_of<T>(layer, all, row, first);
    const T* ahead = outputs_of<T>(layer, all, least(row + kFinishedAhead, all.count - 1), first);
    for (int64_t o = 0; o < kOutputsAtOnce; o += kLine / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(ahead + o, 1);
    unroll<kVectors>([&](auto v) { store(to + v * Vec::width, fma(load(sums[row] + v * Vec::width), times[v], added[v])); });
  }
}

// The outputs [first, last) of all rows, which have sums each.
template <class T>
inline void finish_rows(const winnow_linear_layer& layer, const float (*sums)[kOutputsAtOnce], const void* scales,
                        const LinearRows& all, int64_t first, int64_t last) {
  if (last - first == kOutputsAtOnce) return finish_whole<T>(layer, sums, scales, all, first);
  for (int64_t row = 0; row < all.count; ++row) finish<T>(layer, sums[row], scales, all, row, first, last);
}

}  // namespace
}  // namespace winnow
