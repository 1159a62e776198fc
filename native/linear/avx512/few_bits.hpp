// A weight of 4, 5 or 6 bits with inputs in bf16, for AVX-512.
//
// The order of low bits is that in which torch packs weights of 4 bits for processors with AVX-512: of 64 outputs, input after
// input, 32 bytes, the lower halves of which are the first 32 outputs. A lane of a product is two inputs of an output. A line
// of high bits is of 8 inputs, or of 4 where a level has two: bytes as those of two inputs lie in lanes.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "linear/avx512/level_pairs.hpp"
#include "linear/avx512/level_products.hpp"
#include "linear/avx512/level_values.hpp"
#include "linear/avx512/levels.hpp"
#include "linear/contract.hpp"
#include "linear/finish.hpp"
#include "linear/rows.hpp"
#include "simd/avx512.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Rows for which the numbers of a pair of inputs are unpacked once: all of their sums fit the registers beside these.
constexpr int kUnpackedRows = 5;

// Groups from one to that whose scales are asked for with it; behind the last come those of the next block of outputs.
constexpr int64_t kGroupsAhead = 4;

// Sums of a row -> the same in the order of outputs.
inline void copy_in_order(const Vec (&sums)[kLevelSums], float* to) {
  for (int half = 0; half < 2; ++half, to += 2 * Vec::width) {
    const InOrder found(_mm512_castps_si512(sums[half].v), _mm512_castps_si512(sums[half + 2].v));
    _mm512_storeu_si512(to, found.first);
    _mm512_storeu_si512(to + Vec::width, found.second);
  }
}

// Sums of the inputs that share a scale and a middle, of as many groups at a time as fill a vector: they are made now and then,
// while a processor multiplies.
template <int kRows>
class InputSums {
 public:
  static constexpr int kGroups = Vec::width / kRows;

  // Those of groups from an input on, as far as there are some.
  void take(const Bf16* const (&inputs)[kRows], int64_t first, int64_t end) {
    static_assert(WINNOW_SCALE_GROUP * sizeof(Bf16) == sizeof(__m512i));
    using Products = LevelProducts<kRows>;
    const auto ones = Products::pairs(_mm512_set1_epi16(kOneInBf16));
    Vec found[Vec::width];
    unroll<Vec::width>([&](auto i) __attribute__((always_inline)) {
      constexpr int kRow = i / kGroups < kRows ? i / kGroups : kRows - 1;
      const Bf16* group = inputs[kRow] + least(first + i % kGroups * WINNOW_SCALE_GROUP, end - WINNOW_SCALE_GROUP);
      found[i] = Products::add(broadcast(0.0f), Products::pairs(_mm512_loadu_si512(group)), ones);
    });
    store(sums_, row_sums(found));
  }

  // That of a row, of the group with a number among those.
  Vec of(int row, int64_t group) const { return broadcast(sums_[row * kGroups + group]); }

 private:
  alignas(kLine) float sums_[Vec::width];
};

// Products of kRows rows with kOutputsAtOnce outputs.
template <int kBits, int kRows>
struct LevelTotals {
  using Scales = ScalesOfLevels<kBits>;
  Vec totals[kRows][kLevelSums];

  LevelTotals() {
    for (auto& row : totals) {
      for (Vec& total : row) total = broadcast(0.0f);
    }
  }

  // Adds those of inputs that share a scale: of the numbers times it. `block`: where their levels are; what comes after
  // these is asked for if `asks`.
  __attribute__((always_inline)) void add(LevelPlanes<kBits> block, bool asks, const LevelScales& of,
                                          const Bf16* const (&inputs)[kRows], int64_t first) {
    Sums sums;
    multiply(block, asks, inputs, first, sums);
    unroll<kRows>([&](auto r) __attribute__((always_inline)) { add_scaled<r>(sums, of.scales); });
  }

  // The same, and of their middle times their sum.
  __attribute__((always_inline)) void add(LevelPlanes<kBits> block, bool asks, const LevelMiddles& of,
                                          const Bf16* const (&inputs)[kRows], int64_t first, const InputSums<kRows>& all,
                                          int64_t group) {
    Sums sums;
    multiply(block, asks, inputs, first, sums);
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      add_scaled<r>(sums, of.scales);
      unroll<kLevelSums>([&](auto k) __attribute__((always_inline)) {
        totals[r][k] = fma(all.of(r, group), of.middles[k], totals[r][k]);
      });
    });
  }

  // Those of a row in the order of outputs.
  void copy_row(int64_t row, float* to) const { copy_in_order(totals[row], to); }

 private:
  using Sums = Vec[kRows * kLevelSums];

  __attribute__((always_inline)) static void multiply(LevelPlanes<kBits> block, bool asks, const Bf16* const (&inputs)[kRows],
                                                      int64_t first, Sums& sums) {
    using Products = LevelProducts<kRows>;
    const Products products(inputs, first, kGroupInputs<kBits>);
    unroll<kRows * kLevelSums>([&](auto i) __attribute__((always_inline)) { sums[i] = broadcast(0.0f); });
    // GCC would unroll it for 6 bits, and put all requests first.
#pragma GCC unroll 1
    for (int64_t i = 0; i < kGroupInputs<kBits>; i += 2 * kSharing<kBits>, block.high += kLine) {
      if (asks && kBits > 4) block.ask_ahead();
      unroll<kSharing<kBits>>([&](auto place) __attribute__((always_inline)) {
        if (asks) block.ask_ahead();
        const LevelPairs<kBits> pairs(block.low, block.high, place);
        block.low += kLine;
        typename Products::Pairs each[kLevelSums];
        unroll<kLevelSums>([&](auto k) __attribute__((always_inline)) {
          each[k] = Products::pairs(pairs.template numbers<k>());
        });
        unroll<kRows>([&](auto r) __attribute__((always_inline)) {
          const auto input = products.of(r, i + 2 * place);
          unroll<kLevelSums>([&](auto k) __attribute__((always_inline)) {
            Vec& sum = sums[r * kLevelSums + k];
            sum = Products::add(sum, each[k], input);
          });
        });
      });
    }
  }

  template <int kRow>
  __attribute__((always_inline)) void add_scaled(const Sums& sums, const Vec (&scales)[kLevelSums]) {
    unroll<kLevelSums>([&](auto k) __attribute__((always_inline)) {
      totals[kRow][k] = fma(sums[kRow * kLevelSums + k], scales[k], totals[kRow][k]);
    });
  }
};

// Some tiles of kRows rows each, for which scales are made and lines are asked for once: a group of inputs meets one after
// another, from the first-level cache.
template <int kBits, int kRows, int kTiles>
struct LevelTiles {
  const Bf16* inputs[kTiles][kRows];
  LevelTotals<kBits, kRows> totals[kTiles];
  InputSums<kRows> sums[kTiles];

  // The rows from `first` on, as far as there are some.
  LevelTiles(const winnow_linear_layer& layer, const LinearRows& all, int64_t first) {
    const auto* from = static_cast<const Bf16*>(all.inputs);
    for (int t = 0; t < kTiles; ++t) point_at_rows(from, all.count, layer.inputs, first + t * kRows, inputs[t]);
  }

  // Adds up all groups of inputs.
  __attribute__((always_inline)) void add_groups(const winnow_linear_layer& layer, int64_t output) {
    using Scales = typename LevelTotals<kBits, kRows>::Scales;
    constexpr int kParts = static_cast<int>(kScaleParts<kBits>);
    constexpr int64_t kNumbers = kScaleNumbers<kBits>, kTogether = InputSums<kRows>::kGroups;
    LevelPlanes<kBits> block(layer, output, 0);
    const int64_t apart = kNumbers * layer.outputs, turn = layer.inputs - kGroupsAhead * WINNOW_SCALE_GROUP;
    const Bf16 *scales = scales_at<kBits>(layer, output, 0), *ahead = scales + kGroupsAhead * kParts * apart;
    for (int64_t first = 0, group = 0; first < layer.inputs; first += WINNOW_SCALE_GROUP, ++group, ++block) {
      if (first == turn) ahead = scales_at<kBits>(layer, output + kOutputsAtOnce, 0);
      if (kHasMiddles<kBits> && group % kTogether == 0) {
        for (int t = 0; t < kTiles; ++t) sums[t].take(inputs[t], first, layer.inputs);
      }
      unroll<kParts>([&](auto part) __attribute__((always_inline)) {
        prefetch_span<kNumbers * kOutputsAtOnce * sizeof(Bf16), false>(reinterpret_cast<const char*>(ahead));
        const Scales of(scales);
        unroll<kTiles>([&](auto t) __attribute__((always_inline)) {
          if constexpr (kHasMiddles<kBits>) {
            totals[t].add(block, t == 0, of, inputs[t], first, sums[t], group % kTogether);
          } else {
            totals[t].add(block.part(part), t == 0, of, inputs[t], first + part * kGroupInputs<kBits>);
          }
        });
        scales += apart;
        ahead += apart;
      });
    }
  }
};

// The outputs [first, last) of the rows of some tiles, from `row` on. Never inlined, where the sums of others would crowd the
// registers.
template <int kBits, int kRows, int kTiles>
[[gnu::noinline]] void multiply_tiles(const winnow_linear_layer& layer, const LinearRows& all, int64_t row, int64_t first,
                                      int64_t last) {
  LevelTiles<kBits, kRows, kTiles> tiles(layer, all, row);
  tiles.add_groups(layer, first);
  for (int64_t r = 0; r < least(kTiles * kRows, all.count - row); ++r) {
    float found[kOutputsAtOnce];
    tiles.totals[r / kRows].copy_row(r % kRows, found);
    finish<Bf16>(layer, found, nullptr, all, row + r, first, last);
  }
}

template <int kBits>
inline void linear_few_bits(const winnow_linear_layer& layer, const LinearRows& all, int64_t first, int64_t last) {
  static_assert(kUnpackedRows == 5);
  constexpr int64_t kMost = 2 * kUnpackedRows, kBest = 8;
  int64_t row = 0;
  for (; all.count - row > kMost; row += kBest) multiply_tiles<kBits, kBest / 2, 2>(layer, all, row, first, last);
  switch (all.count - row) {
    case 1: return multiply_tiles<kBits, 1, 1>(layer, all, row, first, last);
    case 2: return multiply_tiles<kBits, 2, 1>(layer, all, row, first, last);
    case 3: return multiply_tiles<kBits, 3, 1>(layer, all, row, first, last);
    case 4: return multiply_tiles<kBits, 4, 1>(layer, all, row, first, last);
    case 5: return multiply_tiles<kBits, 5, 1>(layer, all, row, first, last);
    case 6: return multiply_tiles<kBits, 3, 2>(layer, all, row, first, last);
    case 7:
    case 8: return multiply_tiles<kBits, 4, 2>(layer, all, row, first, last);
    case 9:
    case 10: return multiply_tiles<kBits, 5, 2>(layer, all, row, first, last);
    default: return;  // There are no rows.
  }
}

}  // namespace
}  // namespace winnow
