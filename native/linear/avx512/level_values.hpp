// What levels of a weight of 4, 5 or 6 bits stand for, for AVX-512: scales and middles in the order of LevelPairs' sums.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <type_traits>

#include "linear/avx512/level_pairs.hpp"
#include "linear/avx512/levels.hpp"
#include "linear/contract.hpp"
#include "simd/avx512.hpp"
#include "simd/element.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Scales of inputs that share one, for all outputs, in the order of sums.
struct LevelScales {
  Vec scales[kLevelSums];

  explicit LevelScales(const Bf16* from) {
    unroll<kLevelSums / 2>([&](auto half) __attribute__((always_inline)) {
      load_pair(from + 2 * Vec::width * half, scales[half], scales[half + 2]);
    });
  }
};

// The same with middles.
struct LevelMiddles {
  Vec scales[kLevelSums], middles[kLevelSums];

  explicit LevelMiddles(const Bf16* pairs) {
    unroll<kLevelSums / 2>([&](auto half) {
      Vec even = {_mm512_loadu_ps(pairs + 64 * half)}, odd = {_mm512_loadu_ps(pairs + 64 * half + 32)};
      deal_lanes(even, odd);
      set<half>(even);
      set<half + 2>(odd);
    });
  }

 private:
  template <int kSum>
  void set(Vec pairs) {
    const __m512i bits = _mm512_castps_si512(pairs.v);
    scales[kSum] = lower(Bf16{}, bits);
    middles[kSum] = upper(Bf16{}, bits);
  }
};

// Words of even outputs and of odd ones -> those of the first outputs in their order, and of the others.
struct InOrder {
  __m512i first, second;

  InOrder(__m512i even, __m512i odd) {
    const __m512i order = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    first = _mm512_permutex2var_epi32(even, order, odd);
    second = _mm512_permutex2var_epi32(even, _mm512_add_epi32(order, _mm512_set1_epi32(8)), odd);
  }
};

// Scales, and middles, of a weight of so many bits.
template <int kBits>
using ScalesOfLevels = std::conditional_t<kHasMiddles<kBits>, LevelMiddles, LevelScales>;

// What levels of a part of a group stand for, of the vectors of outputs that LevelPairs has.
template <int kBits>
struct LevelValues {
  ScalesOfLevels<kBits> of;

  explicit LevelValues(const Bf16* scales) : of(scales) {}

  template <int kVector>
  Vec value(Vec level) const {
    if constexpr (kHasMiddles<kBits>) {
      return fma(level, of.scales[kVector], of.middles[kVector]);
    } else {
      return level * of.scales[kVector];
    }
  }
};

// Calls body(pairs, values, i) for all pairs of inputs of a group from an input on, the first of which is its i-th, for a block
// of outputs. What comes after them in the weight is asked for.
template <int kBits, class Body>
__attribute__((always_inline)) inline void for_group(const winnow_linear_layer& layer, int64_t input, int64_t output,
                                                     const Body& body) {
  const LevelPlanes<kBits> whole(layer, output, input);
  for (int64_t part = 0; part < kScaleParts<kBits>; ++part) {
    const int64_t first = part * kGroupInputs<kBits>;
    const LevelValues<kBits> values(scales_at<kBits>(layer, output, input + first));
    for_level_pairs(whole.part(part), true, [&](const auto& pairs, int64_t i) __attribute__((always_inline)) {
      body(pairs, values, first + i);
    });
  }
}

}  // namespace
}  // namespace winnow
