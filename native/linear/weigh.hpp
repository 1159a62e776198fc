// Rows of a token's experts -> their weighted sum.
#pragma once

#include <cstdint>

#include "linear/contract.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

template <class T>
void weigh(const WeighedRows& rows, void* to) {
  const T* from = static_cast<const T*>(rows.data);
  for (int64_t o = 0; o < rows.width; o += Vec::width) {
    const int64_t rest = rows.width - o;
    Vec sum = broadcast(0.0f);
    for (int64_t i = 0; i < rows.count; ++i) {
      sum = fma(load_up_to(from + rows.places[i] * rows.width + o, rest), broadcast(rows.weights[i]), sum);
    }
    store_up_to(static_cast<T*>(to) + o, sum, rest);
  }
}

}  // namespace
}  // namespace winnow
