// Loops that are unrolled before anything else happens.
//
// Arrays of accumulators stay in registers only if every index is a constant when the compiler splits them
// up; its own unrolling comes too late for that and leaves a store and a load per accumulator.
#pragma once

#include <type_traits>
#include <utility>

namespace winnow {
namespace {

template <int N>
using Count = std::integral_constant<int, N>;

template <class Body, int... kIndex>
__attribute__((always_inline)) inline void unroll_over(const Body& body, std::integer_sequence<int, kIndex...>) {
  (body(Count<kIndex>{}), ...);
}

// body(Count<0>), ..., body(Count<N - 1>)
template <int N, class Body>
__attribute__((always_inline)) inline void unroll(const Body& body) {
  unroll_over(body, std::make_integer_sequence<int, N>{});
}

}  // namespace
}  // namespace winnow
