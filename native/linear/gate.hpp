// Outputs of a linear layer, gated by those of another one.
#pragma once

#include <cstdint>

#include "linear/contract.hpp"
#include "simd/math.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// x / (1 + exp(-x)), in fp32.
inline Vec silu(Vec x) {
  // Below it, where exp would overflow, silu is as good as zero.
  const Vec least = broadcast(-87.0f), number = if_less(x, least, least, x);
  return number / (broadcast(1.0f) + exp(broadcast(0.0f) - number));
}

template <class T>
void gate(const void* gates, const LinearRows& all, int64_t stride, int64_t first, int64_t last) {
  for (int64_t row = 0; row < all.count; ++row) {
    const T* from = static_cast<const T*>(gates) + row * stride;
    T* to = static_cast<T*>(all.outputs) + row * stride;
    for (int64_t o = first; o < last; o += Vec::width) {
      const int64_t rest = last - o;
      // Rounded before it meets the output, as models do.
      const Vec found = rounded(T{}, silu(load_up_to(from + o, rest))) * load_up_to(to + o, rest);
      store_up_to(to + o, found, rest);
    }
  }
}

}  // namespace
}  // namespace winnow
