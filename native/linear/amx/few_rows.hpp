// A linear layer of a few rows and a weight of 4, 5 or 6 bits, for AMX: levels become tiles as they are, which bf16 holds, and
// the sums of inputs that share a scale meet it in fp32. A tile has as many rows as there are, and takes as many cycles.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "linear/amx/tiled_rows.hpp"
#include "linear/avx512/few_bits.hpp"
#include "linear/avx512/level_pairs.hpp"
#include "linear/avx512/levels.hpp"
#include "linear/contract.hpp"
#include "linear/finish.hpp"
#include "matrix/amx/sizes.hpp"
#include "matrix/amx/tiles.hpp"
#include "runtime/kernels.hpp"
#include "simd/avx512.hpp"
#include "simd/avx512/pairs.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Tiles of inputs that share a scale: four of sums, 0 to 3, one of rows (4), of levels (5), of ones (6), and of the rows'
// sums (7).
template <int kBits>
class LevelTileShapes {
 public:
  explicit LevelTileShapes(int64_t rows) {
    constexpr auto kPairs = static_cast<uint8_t>(kGroupInputs<kBits> / 2);
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) {
      const bool is_right = tile == 5 || tile == 6;
      config.rows[tile] = is_right ? kPairs : static_cast<uint8_t>(rows);
      config.row_bytes[tile] = tile == 4 ? 4 * kPairs : static_cast<uint16_t>(kLine);
    }
    finish_stores();
    _tile_loadconfig(&config);
  }
  ~LevelTileShapes() { _tile_release(); }
  LevelTileShapes(const LevelTileShapes&) = delete;
  LevelTileShapes& operator=(const LevelTileShapes&) = delete;
};

// What is made of inputs that share a scale.
struct LevelTileSums {
  Vec products[kLevelSums][kRowsOfTile];
  Vec inputs[kRowsOfTile];  // Of a row's inputs, in every lane.
};

// The outputs [first, first + kOutputsAtOnce) of up to kRowsOfTile rows.
template <int kBits>
class FewRowsInTiles {
 public:
  FewRowsInTiles(const winnow_linear_layer& layer, const Bf16* inputs, int64_t rows)
      : layer_(layer), inputs_(inputs), rows_(rows) {
    for (auto& row : totals_) {
      for (Vec& total : row) total = broadcast(0.0f);
    }
    for (__m512i& pair : ones_) pair = _mm512_set1_epi16(kOneInBf16);
  }

  void add_up(int64_t output) {
    const LevelTileShapes<kBits> shapes(rows_);
    finish_stores();
    _tile_loadd(6, ones_, kLine);
    const Bf16* scales = scales_at<kBits>(layer_, output, 0);
    const int64_t apart = kScaleNumbers<kBits> * layer_.outputs;
    LevelPlanes<kBits> planes(layer_, output, 0);
    int64_t part = 0;
    for (int64_t input = 0; input < layer_.inputs; input += WINNOW_SCALE_GROUP, ++planes) {
      unroll<kScaleParts<kBits>>([&](auto place) __attribute__((always_inline)) {
        lay(planes.part(place), levels_[part % 2]);
        multiply(levels_[part % 2], inputs_ + input + place * kGroupInputs<kBits>, sums_[part % 2]);
        // Sums of the part before, while this one's are under way.
        if (part > 0) add(sums_[(part - 1) % 2], scales + (part - 1) * apart);
        ++part;
      });
    }
    add(sums_[(part - 1) % 2], scales + (part - 1) * apart);
  }

  // Those of a row in the order of outputs.
  void copy_row(int64_t row, float* to) const { copy_in_order(totals_[row], to); }

 private:
  static constexpr int64_t kPairs = kGroupInputs<kBits> / 2;
  using Scales = ScalesOfLevels<kBits>;
  using Levels = __m512i[kLevelSums][kPairs];

  static void lay(LevelPlanes<kBits> planes, Levels& to) {
    for (int64_t pair = 0; pair < kPairs; pair += kSharing<kBits>, planes.high += kLine) {
      if (kBits > 4) planes.ask_ahead();
      unroll<kSharing<kBits>>([&](auto place) __attribute__((always_inline)) {
        planes.ask_ahead();
        const LevelPairs<kBits> pairs(planes.low, planes.high, place);
        planes.low += kLine;
        unroll<kLevelSums>([&](auto k) __attribute__((always_inline)) { to[k][pair + place] = pairs.template numbers<k>(); });
      });
    }
  }

  void multiply(const Levels& levels, const Bf16* inputs, LevelTileSums& sums) const {
    finish_stores();
    _tile_loadd(4, inputs, layer_.inputs * static_cast<int64_t>(sizeof(Bf16)));
    zero_sums<4>();
    _tile_loadd(5, levels[0], kLine);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(5, levels[1], kLine);
    _tile_dpbf16ps(1, 4, 5);
    _tile_loadd(5, levels[2], kLine);
    _tile_dpbf16ps(2, 4, 5);
    _tile_loadd(5, levels[3], kLine);
    _tile_dpbf16ps(3, 4, 5);
    _tile_stored(0, sums.products[0], kLine);
    _tile_stored(1, sums.products[1], kLine);
    _tile_stored(2, sums.products[2], kLine);
    _tile_stored(3, sums.products[3], kLine);
    if constexpr (kHasMiddles<kBits>) {
      _tile_zero(7);
      _tile_dpbf16ps(7, 4, 6);
      _tile_stored(7, sums.inputs, kLine);
    }
    finish_stores();
  }

  void add(const LevelTileSums& sums, const Bf16* scales) {
    prefetch_span<kScaleNumbers<kBits> * kOutputsAtOnce * sizeof(Bf16), false>(
        reinterpret_cast<const char*>(scales + kGroupsAhead * kScaleNumbers<kBits> * layer_.outputs));
    const Scales of(scales);
    for (int64_t row = 0; row < rows_; ++row) {
      unroll<kLevelSums>([&](auto k) __attribute__((always_inline)) {
        Vec total = fma(sums.products[k][row], of.scales[k], totals_[row][k]);
        if constexpr (kHasMiddles<kBits>) total = fma(sums.inputs[row], of.middles[k], total);
        totals_[row][k] = total;
      });
    }
  }

  const winnow_linear_layer& layer_;
  const Bf16* inputs_;
  const int64_t rows_;
  Levels levels_[2];
  LevelTileSums sums_[2];
  Vec totals_[kRowsOfTile][kLevelSums];
  __m512i ones_[kPairs];
};

// Rows from which levels are laid in less time than they are multiplied in registers.
constexpr int64_t kFewestTileRows = 3;

template <int kBits>
inline void few_rows_in_tiles(const winnow_linear_layer& layer, const LinearRows& all, int64_t first, int64_t last) {
  if (all.count < kFewestTileRows) {
    return isa::avx512.linear_few_bits[WINNOW_BF16].of_bits[kBits - 4](layer, all, first, last);
  }
  const auto* inputs = static_cast<const Bf16*>(all.inputs);
  for (int64_t row = 0; row < all.count; row += kRowsOfTile) {
    const int64_t rows = least(kRowsOfTile, all.count - row);
    FewRowsInTiles<kBits> tiles(layer, inputs + row * layer.inputs, rows);
    tiles.add_up(first);
    for (int64_t r = 0; r < rows; ++r) {
      float found[kOutputsAtOnce];
      tiles.copy_row(r, found);
      finish<Bf16>(layer, found, nullptr, all, row + r, first, last);
    }
  }
}

}  // namespace
}  // namespace winnow
