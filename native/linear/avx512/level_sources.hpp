// Where products get the numbers of inputs that share a scale, for a block of outputs: looked up for a few rows, or written out
// once for many.
#pragma once

#include <cstdint>

#include "linear/avx512/level_pairs.hpp"
#include "linear/avx512/level_products.hpp"
#include "linear/avx512/levels.hpp"
#include "linear/contract.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Levels where they lie. What comes after them in the weight is asked for if `asks`.
template <int kBits>
struct LookedUpLevels {
  LevelPlanes<kBits> block;
  bool asks;

  // Calls body(i, numbers) for all pairs of inputs, the first of which is the i-th, with those of each vector of sums as
  // Products takes them.
  template <class Products, class Body>
  __attribute__((always_inline)) void for_pairs(const Body& body) const {
    for_level_pairs(block, asks, [&](const auto& pairs, int64_t i) __attribute__((always_inline)) {
      typename Products::Pairs each[kLevelSums];
      unroll<kLevelSums>([&](auto k) __attribute__((always_inline)) {
        each[k] = Products::pairs(pairs.template numbers<k>());
      });
      body(i, each);
    });
  }
};

// Levels that are written out in fp32.
template <int kBits>
class WrittenLevels {
 public:
  void write(const LookedUpLevels<kBits>& levels) {
    float* to = numbers_;
    levels.template for_pairs<SplitProducts<1>>([&](int64_t, const auto& each) __attribute__((always_inline)) {
      unroll<kLevelSums>([&](auto k) __attribute__((always_inline)) {
        store(to, each[k].first);
        store(to + Vec::width, each[k].second);
        to += 2 * Vec::width;
      });
    });
  }

  template <class Products, class Body>
  __attribute__((always_inline)) void for_pairs(const Body& body) const {
    const float* from = numbers_;
#pragma GCC unroll 1
    for (int64_t i = 0; i < kGroupInputs<kBits>; i += 2) {
      typename Products::Pairs each[kLevelSums];
      unroll<kLevelSums>([&](auto k) __attribute__((always_inline)) {
        each[k] = {load(from), load(from + Vec::width)};
        from += 2 * Vec::width;
      });
      body(i, each);
    }
  }

 private:
  alignas(kLine) float numbers_[kGroupInputs<kBits> * kOutputsAtOnce];
};

}  // namespace
}  // namespace winnow
