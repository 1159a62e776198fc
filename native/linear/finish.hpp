// Sums of a row -> its outputs.
#pragma once

#include <cstdint>

#include "linear/contract.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// The outputs [first, last) of a row: sums, times a scale of each unless there are none, with the bias added.
template <class T>
inline void finish(const winnow_linear_layer& layer, const float* sums, const void* scales, const LinearRows& all,
                   int64_t row, int64_t first, int64_t last) {
  const T *scale = static_cast<const T*>(scales), *bias = static_cast<const T*>(layer.bias);
  T* to = static_cast<T*>(all.outputs) + row * layer.outputs;
  for (int64_t o = first; o < last; o += Vec::width, sums += Vec::width) {
    const int64_t rest = last - o;
    const Vec added = bias ? load_up_to(bias + o, rest) : broadcast(0.0f);
    const Vec found = fma(load(sums), scale ? load_up_to(scale + o, rest) : broadcast(1.0f), added);
    store_up_to(to + o, found, rest);
  }
}

}  // namespace
}  // namespace winnow
