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
#include "linear/avx512/level_sources.hpp"
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

// Rows whose totals stay in the first-level cache, beside what levels of a group are written out as.
constexpr int64_t kMostWrittenRows = 32;

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
  Vec totals[kRows][kLevelSums];

  LevelTotals() {
    for (auto& row : totals) {
      for (Vec& total : row) total = broadcast(0.0f);
    }
  }

  // Adds those of inputs that share a scale: of the numbers times it.
  template <class Levels>
  __attribute__((always_inline)) void add(const Levels& levels, const LevelScales& of, const Bf16* const (&inputs)[kRows],
                                          int64_t first) {
    Sums sums;
    multiply(levels, inputs, first, sums);
    unroll<kRows>([&](auto r) __attribute__((always_inline)) { add_scaled<r>(sums, of.scales); });
  }

  // The same, and of their middle times their sum.
  template <class Levels>
  __attribute__((always_inline)) void add(const Levels& levels, const LevelMiddles& of, const Bf16* const (&inputs)[kRows],
                                          int64_t first, const InputSums<kRows>& all, int64_t group) {
    Sums sums;
    multiply(levels, inputs, first, sums);
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

  template <class Levels>
  __attribute__((always_inline)) static void multiply(const Levels& levels, const Bf16* const (&inputs)[kRows], int64_t first,
                                                      Sums& sums) {
    using Products = LevelProducts<kRows>;
    const Products products(inputs, first, kGroupInputs<kBits>);
    unroll<kRows * kLevelSums>([&](auto i) __attribute__((always_inline)) { sums[i] = broadcast(0.0f); });
    levels.template for_pairs<Products>([&](int64_t i, const auto& each) __attribute__((always_inline)) {
      unroll<kRows>([&](auto r) __attribute__((always_inline)) {
        const auto input = products.of(r, i);
        unroll<kLevelSums>([&](auto k) __attribute__((always_inline)) {
          Vec& sum = sums[r * kLevelSums + k];
          sum = Products::add(sum, each[k], input);
        });
      });
    });
  }

  template <int kRow>
  __attribute__((always_inline)) void add_scaled(const Sums& sums, const Vec (&scales)[kLevelSums]) {
    unroll<kLevelSums>([&](auto k) __attribute__((always_inline)) {
      totals[kRow][k] = fma(sums[kRow * kLevelSums + k], scales[k], totals[kRow][k]);
    });
  }
};

// A tile of kRows rows.
template <int kBits, int kRows>
class LevelTile {
 public:
  // The rows from `first` on, as far as there are some.
  void point_at(const winnow_linear_layer& layer, const LinearRows& all, int64_t first) {
    point_at_rows(static_cast<const Bf16*>(all.inputs), all.count, layer.inputs, first, inputs_);
    end_ = layer.inputs;
  }

  // Adds the products of inputs that share a scale, from one on, which are in the group with a number.
  template <class Levels>
  __attribute__((always_inline)) void add(const Levels& levels, const ScalesOfLevels<kBits>& of, int64_t input, int64_t group) {
    if constexpr (kHasMiddles<kBits>) {
      constexpr int64_t kTogether = InputSums<kRows>::kGroups;
      if (group % kTogether == 0) sums_.take(inputs_, input, end_);
      totals_.add(levels, of, inputs_, input, sums_, group % kTogether);
    } else {
      totals_.add(levels, of, inputs_, input);
    }
  }

  // Outputs [first, last) of its rows, which are those from `row` on.
  void finish_rows(const winnow_linear_layer& layer, const LinearRows& all, int64_t row, int64_t first, int64_t last) const {
    for (int64_t r = 0; r < least(kRows, all.count - row); ++r) {
      float found[kOutputsAtOnce];
      totals_.copy_row(r, found);
      finish<Bf16>(layer, found, nullptr, all, row + r, first, last);
    }
  }

 private:
  const Bf16* inputs_[kRows];
  int64_t end_;
  LevelTotals<kBits, kRows> totals_;
  InputSums<kRows> sums_;
};

// Calls body(levels, scales, input, group) for all inputs of a block of outputs that share scales, which are made and asked for
// once: the first of them, and the number of their group.
template <int kBits, class Body>
__attribute__((always_inline)) inline void for_scales(const winnow_linear_layer& layer, int64_t output, const Body& body) {
  constexpr int kParts = static_cast<int>(kScaleParts<kBits>);
  constexpr int64_t kNumbers = kScaleNumbers<kBits>;
  LevelPlanes<kBits> block(layer, output, 0);
  const int64_t apart = kNumbers * layer.outputs, turn = layer.inputs - kGroupsAhead * WINNOW_SCALE_GROUP;
  const Bf16 *scales = scales_at<kBits>(layer, output, 0), *ahead = scales + kGroupsAhead * kParts * apart;
  for (int64_t first = 0, group = 0; first < layer.inputs; first += WINNOW_SCALE_GROUP, ++group, ++block) {
    if (first == turn) ahead = scales_at<kBits>(layer, output + kOutputsAtOnce, 0);
    unroll<kParts>([&](auto part) __attribute__((always_inline)) {
      prefetch_span<kNumbers * kOutputsAtOnce * sizeof(Bf16), false>(reinterpret_cast<const char*>(ahead));
      const ScalesOfLevels<kBits> of(scales);
      body(block.part(part), of, first + part * kGroupInputs<kBits>, group);
      scales += apart;
      ahead += apart;
    });
  }
}

// The outputs [first, last) of the rows of some tiles, from `row` on: a group of inputs meets one after another, from the
// first-level cache. Never inlined, where the sums of others would crowd the registers.
template <int kBits, int kRows, int kTiles>
[[gnu::noinline]] void multiply_tiles(const winnow_linear_layer& layer, const LinearRows& all, int64_t row, int64_t first,
                                      int64_t last) {
  LevelTile<kBits, kRows> tiles[kTiles];
  for (int t = 0; t < kTiles; ++t) tiles[t].point_at(layer, all, row + t * kRows);
  for_scales<kBits>(layer, first, [&](const auto& block, const auto& of, int64_t input, int64_t group)
                                      __attribute__((always_inline)) {
    unroll<kTiles>([&](auto t) __attribute__((always_inline)) {
      tiles[t].add(LookedUpLevels<kBits>{block, t == 0}, of, input, group);
    });
  });
  for (int t = 0; t < kTiles; ++t) tiles[t].finish_rows(layer, all, row + t * kRows, first, last);
}

// The same of `rows` rows in as many tiles as they take, which meet levels that are written out.
template <int kBits, int kRows>
[[gnu::noinline]] void multiply_written(const winnow_linear_layer& layer, const LinearRows& all, int64_t row, int64_t rows,
                                        int64_t first, int64_t last) {
  LevelTile<kBits, kRows> tiles[(kMostWrittenRows + kRows - 1) / kRows];
  const int64_t count = divide_up(rows, kRows);
  for (int64_t t = 0; t < count; ++t) tiles[t].point_at(layer, all, row + t * kRows);
  WrittenLevels<kBits> levels;
  for_scales<kBits>(layer, first, [&](const auto& block, const auto& of, int64_t input, int64_t group)
                                      __attribute__((always_inline)) {
    levels.write(LookedUpLevels<kBits>{block, true});
    for (int64_t t = 0; t < count; ++t) tiles[t].add(levels, of, input, group);
  });
  for (int64_t t = 0; t < count; ++t) tiles[t].finish_rows(layer, all, row + t * kRows, first, last);
}

// The rows from `row` on, kUnpackedRows at most.
template <int kBits>
inline void multiply_tile(const winnow_linear_layer& layer, const LinearRows& all, int64_t row, int64_t first, int64_t last) {
  static_assert(kUnpackedRows == 5);
  switch (all.count - row) {
    case 1: return multiply_tiles<kBits, 1, 1>(layer, all, row, first, last);
    case 2: return multiply_tiles<kBits, 2, 1>(layer, all, row, first, last);
    case 3: return multiply_tiles<kBits, 3, 1>(layer, all, row, first, last);
    case 4: return multiply_tiles<kBits, 4, 1>(layer, all, row, first, last);
    case 5: return multiply_tiles<kBits, 5, 1>(layer, all, row, first, last);
    default: return;  // There are no rows.
  }
}

#ifdef WINNOW_ZEN
// Products take pairs as they are looked up, which is done again for each tile.
template <int kBits>
inline void linear_few_bits(const winnow_linear_layer& layer, const LinearRows& all, int64_t first, int64_t last) {
  constexpr int64_t kMost = 2 * kUnpackedRows, kBest = 8;
  int64_t row = 0;
  for (; all.count - row > kMost; row += kBest) multiply_tiles<kBits, kBest / 2, 2>(layer, all, row, first, last);
  switch (all.count - row) {
    case 6: return multiply_tiles<kBits, 3, 2>(layer, all, row, first, last);
    case 7:
    case 8: return multiply_tiles<kBits, 4, 2>(layer, all, row, first, last);
    case 9:
    case 10: return multiply_tiles<kBits, 5, 2>(layer, all, row, first, last);
    default: return multiply_tile<kBits>(layer, all, row, first, last);
  }
}
#else
template <int kBits>
inline void linear_few_bits(const winnow_linear_layer& layer, const LinearRows& all, int64_t first, int64_t last) {
  int64_t row = 0;
  while (all.count - row > kUnpackedRows) {
    const int64_t rows = least(kMostWrittenRows, all.count - row);
    // The tiles that have room for fewer rows that there are not.
    if (round_up(rows, 5) < round_up(rows, 4)) {
      multiply_written<kBits, 5>(layer, all, row, rows, first, last);
    } else {
      multiply_written<kBits, 4>(layer, all, row, rows, first, last);
    }
    row += rows;
  }
  multiply_tile<kBits>(layer, all, row, first, last);
}
#endif

}  // namespace
}  // namespace winnow
