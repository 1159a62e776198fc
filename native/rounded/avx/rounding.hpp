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

// A block of inputs from `from` on, of which `count` are there, with the size of the largest in every lane.
struct InputBlock {
  Vec numbers[kRoundedTogether / Vec::width];
  Vec largest;

  template <class T>
  InputBlock(const T* from, int64_t count) {
    Whole most = no_whole();
    for (Vec& some : numbers) {
      some = count > 0 ? load_up_to(from, count) : broadcast(0.0f);
      most = larger(most, size_bits(some));
      from += Vec::width;
      count -= Vec::width;
    }
    largest = of_size(largest_lane(most));
  }
};

template <class T>
inline void round_inputs(const T* from, int64_t count, int16_t* to, float* scale) {
  const InputBlock block(from, count);
  const RoundedScale scales(block.largest, kMostInput);
  store_whole(block.numbers, scales.to, to);
  store_first(scale, scales.back, 1);
}

// Pairs of a block's numbers, of a vector of outputs each.
using TurnedPairs = Whole[kRoundedTogether / 2];

// Pairs of bf16, as pairs of whole numbers behind each other, kPanelOutputs lanes apart, with a scale for each output.
inline void round_pairs(const TurnedPairs& pairs, int16_t* to, float* scales) {
  Whole most = no_whole();
  for (const Whole each : pairs) most = larger_sizes(most, each);
  const RoundedScale scale(of_size(larger(size_bits(first_of(most)), size_bits(second_of(most)))), kMostWeight);
  store(scales, scale.back);
  for (const Whole each : pairs) {
    store_pairs(to, join_pairs(round_whole(first_of(each), scale.to), round_whole(second_of(each), scale.to)));
    to += 2 * kPanelOutputs;
  }
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
