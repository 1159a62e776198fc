// Sums over a row that every instruction set gives alike.
//
// They add floats, or products of two floats, in double precision, lane after lane in one order: such products are
// exact, so that instruction sets with and without fused multiplication agree to the last bit.
#pragma once

#include <cstdint>
#include <cstring>

#include "prune/row.hpp"
#include "simd/unroll.hpp"

namespace winnow {
namespace {

// Adds up sixteen floats at a time, in vectors as wide as the machine's.
class LaneSums {
 public:
  static constexpr int kSums = 16;
  static constexpr int kLanes = __BIGGEST_ALIGNMENT__ / 4;
  typedef int32_t Bits __attribute__((vector_size(kLanes * 4)));

  // The numbers at `from` whose bits are left by mask(bits, i), i counting vectors; or their squares.
  template <bool kSquared, class Mask>
  void add(const float* from, const Mask& mask) {
    unroll<kSums / kLanes>([&](auto i) {
      Bits bits;
      std::memcpy(&bits, from + i * kLanes, sizeof bits);
      bits &= mask(bits, i);
      Floats halves[2];
      std::memcpy(halves, &bits, sizeof halves);
      sums_[2 * i] += wide<kSquared>(halves[0]);
      sums_[2 * i + 1] += wide<kSquared>(halves[1]);
    });
  }
  double total() const {
    double lanes[kSums];
    std::memcpy(lanes, sums_, sizeof lanes);
    for (int half = kSums / 2; half; half /= 2) {
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
  }

 private:
  typedef float Floats __attribute__((vector_size(kLanes * 2)));
  typedef double Doubles __attribute__((vector_size(kLanes * 4)));

  template <bool kSquared>
  static Doubles wide(Floats floats) {
    const Doubles doubles = __builtin_convertvector(floats, Doubles);
    if constexpr (kSquared) return doubles * doubles;
    return doubles;
  }

  Doubles sums_[2 * kSums / kLanes] = {};
};

// The sum of the sizes that have at least these bits, or of their squares.
template <bool kSquared = false>
inline double sum_from(const PruneRow& row, int32_t low) {
  LaneSums sums;
  for (int64_t j = 0; j < row.dim; j += LaneSums::kSums) {
    sums.add<kSquared>(row.sizes + j, [&](const LaneSums::Bits& bits, auto) { return bits >= low; });
  }
  return sums.total();
}

// The sum of the numbers of marked channels, or of their squares.
template <bool kSquared = false>
inline double sum_where(const PruneRow& row, const float* numbers, const uint64_t* words) {
  LaneSums::Bits lane;
  for (int i = 0; i < LaneSums::kLanes; ++i) lane[i] = 1 << i;
  LaneSums sums;
  for (int64_t j = 0; j < row.dim; j += LaneSums::kSums) {
    const int32_t marks = static_cast<int32_t>(words[j / 64] >> j % 64 & 0xffff);
    sums.add<kSquared>(numbers + j, [&](const LaneSums::Bits&, auto i) {
      const LaneSums::Bits mine = LaneSums::Bits{} + (marks >> (i * LaneSums::kLanes));
      return (mine & lane) == lane;
    });
  }
  return sums.total();
}

inline double squares_where(const PruneRow& row, const uint64_t* words) {
  return sum_where<true>(row, row.sizes, words);
}

}  // namespace
}  // namespace winnow
