// Products of levels, two inputs of an output in a lane, with those inputs of kRows rows, for AVX-512.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "simd/avx512.hpp"
#include "simd/avx512/halves.hpp"
#include "simd/element.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "winnow_native.h"

#ifdef WINNOW_ZEN
#include "simd/avx512/pairs.hpp"
#endif

namespace winnow {
namespace {

#ifdef WINNOW_ZEN
// In pairs of bf16, where inputs lie.
template <int kRows>
class PairedProducts {
 public:
  using Pairs = __m512i;

  static Pairs pairs(__m512i numbers) { return numbers; }
  static Vec add(Vec sum, Pairs a, Pairs b) { return {Bf16Pairs::add(sum.v, a, b)}; }

  // Up to WINNOW_SCALE_GROUP inputs from the `first` on.
  PairedProducts(const Bf16* const (&inputs)[kRows], int64_t first, int64_t) {
    unroll<kRows>([&](auto r) __attribute__((always_inline)) { inputs_[r] = inputs[r] + first; });
  }

  // Two inputs of a row, the first of which is the i-th.
  Pairs of(int row, int64_t i) const { return broadcast_four(inputs_[row] + i); }

 private:
  const Bf16* inputs_[kRows];
};
#endif

// Number by number in fp32, for Intel's processors, which multiply bf16 in pairs more slowly or not at all.
template <int kRows>
class SplitProducts {
 public:
  struct Pairs {
    Vec first, second;
  };

  static Pairs pairs(__m512i numbers) { return {lower(Bf16{}, numbers), upper(Bf16{}, numbers)}; }
  // In the order of the instructions for pairs, whose sums these are to the bit: those of a row do not depend on others.
  static Vec add(Vec sum, const Pairs& a, const Pairs& b) { return fma(a.first, b.first, fma(a.second, b.second, sum)); }

  // `count` inputs from the `first` on, which fill vectors of pairs or half of one.
  SplitProducts(const Bf16* const (&inputs)[kRows], int64_t first, int64_t count) {
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      store_pairs_of(inputs[r] + first, count, first_[r], second_[r]);
    });
  }

  // Two inputs of a row, the first of which is the i-th.
  Pairs of(int row, int64_t i) const { return {broadcast(first_[row][i / 2]), broadcast(second_[row][i / 2])}; }

 private:
  static constexpr int64_t kPairs = WINNOW_SCALE_GROUP / 2;
  static_assert(kPairs == Vec::width);

  static void store_pairs_of(const Bf16* from, int64_t count, float* first, float* second) {
    const auto mask = static_cast<__mmask16>((uint32_t{1} << (count / 2)) - 1);
    const Pairs found = pairs(_mm512_maskz_loadu_epi32(mask, from));
    store(first, found.first);
    store(second, found.second);
  }

  alignas(64) float first_[kRows][kPairs], second_[kRows][kPairs];
};

#ifdef WINNOW_ZEN
template <int kRows>
using LevelProducts = PairedProducts<kRows>;
#else
template <int kRows>
using LevelProducts = SplitProducts<kRows>;
#endif

}  // namespace
}  // namespace winnow
