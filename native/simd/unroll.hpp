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

// The size of parts of `all` that are as even as they can be, and no larger than `most`; the last may be smaller.
constexpr int even_part(int all, int most) {
  const int parts = (all + most - 1) / most;
  return (all + parts - 1) / parts;
}

// Calls body(Count<first>, Count<size>) for all of them.
template <int kAll, int kMost, class Body>
__attribute__((always_inline)) inline void for_even_parts(const Body& body) {
  constexpr int kSize = even_part(kAll, kMost);
  unroll<(kAll + kSize - 1) / kSize>([&](auto part) __attribute__((always_inline)) {
    constexpr int kFirst = part * kSize, kRest = kAll - kFirst;
    body(Count<kFirst>{}, Count<(kRest < kSize ? kRest : kSize)>{});
  });
}

}  // namespace
}  // namespace winnow
