// Numbers -> whole numbers of 16 bits, for AVX2 and AVX-512.
//
// A block of numbers that share a scale keeps 14 bits of its largest input, and 13 of its largest weight: bf16 has 8 of each.
#pragma once

#include <cstdint>

#include "rounded/avx/panel.hpp"
#include "rounded/sizes.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// What makes numbers up to `largest` whole numbers up to `most`, and these numbers again. Where `largest` is not finite, the
// second is not either; where the first would not be, numbers are taken for zero.
struct RoundedScale {
  Vec to, back;

  RoundedScale(Vec largest, int32_t most) {
    const Vec limit = broadcast(static_cast<float>(most)), smallest = broadcast(1e-30f), none = broadcast(0.0f);
    to = if_less(smallest, largest, limit / largest, none);
    back = largest * broadcast(1.0f / static_cast<float>(most));
  }
};

inline Whole round_whole(Vec a, Vec to) { return nearest_whole(a * to); }

// A block of numbers as whole numbers, beside each other.
inline void store_whole(const Vec (&numbers)[kRoundedTogether / Vec::width], Vec scale, int16_t* to) {
  for (int64_t v = 0; v < kRoundedTogether / Vec::width; v += 2) {
    store_beside(to + v * Vec::width, round_whole(numbers[v], scale), round_whole(numbers[v + 1], scale));
  }
}

// A block of inputs from `from` on, of which `count` are there.
template <class T>
inline void round_inputs(const T* from, int64_t count, int16_t* to, float* scale) {
  constexpr int kVectors = kRoundedTogether / Vec::width;
  Vec numbers[kVectors];
  Whole largest = no_whole();
  for (int v = 0; v < kVectors; ++v) {
    const int64_t rest = count - v * Vec::width;
    numbers[v] = rest > 0 ? load_up_to(from + v * Vec::width, rest) : broadcast(0.0f);
    largest = larger(largest, size_bits(numbers[v]));
  }
  const RoundedScale scales(of_size(largest_lane(largest)), kMostInput);
  store_whole(numbers, scales.to, to);
  store_first(scale, scales.back, 1);
}

// A block of a panel, as pairs of inputs [kRoundedTogether / 2, kPanelOutputs, 2], with a scale for each output.
inline void round_columns(const float (&numbers)[kRoundedTogether][kPanelOutputs], int16_t* to, float* scales) {
  for (int64_t o = 0; o < kPanelOutputs; o += Vec::width) {
    Whole largest = no_whole();
    for (const auto& outputs : numbers) largest = larger(largest, size_bits(load(outputs + o)));
    const RoundedScale scale(of_size(largest), kMostWeight);
    store(scales + o, scale.back);
    for (int64_t i = 0; i < kRoundedTogether; i += 2) {
      const Whole even = round_whole(load(numbers[i] + o), scale.to), odd = round_whole(load(numbers[i + 1] + o), scale.to);
      store_pairs(to + i * kPanelOutputs + 2 * o, join_pairs(even, odd));
    }
  }
}

}  // namespace
}  // namespace winnow
