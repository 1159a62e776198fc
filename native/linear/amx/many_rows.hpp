// A linear layer of many rows and a weight of any bits, for AMX: a panel of the weight meets all rows in tiles. It is laid
// anew where it is multiplied, in the caches, and nothing is written out.
//
// A product of tiles is one instruction that takes sixteen cycles: meanwhile, vectors lay the panel that is next.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "linear/amx/tile_panel.hpp"
#include "linear/amx/tiled_rows.hpp"
#include "linear/avx512/levels.hpp"
#include "linear/contract.hpp"
#include "linear/finish.hpp"
#include "matrix/amx/sizes.hpp"
#include "matrix/amx/tiles.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Outputs whose panels of the same inputs meet rows one after another, while these are in the second-level cache.
constexpr int64_t kOutputsInTiles = 4 * kOutputsAtOnce;

// Memory of a thread: panels, the one that is multiplied and the next, and sums of rows, in whole pairs of tiles.
struct LayerTileScratch {
  alignas(kLine) TilePanel panels[2];
  float sums[1][kOutputsAtOnce];  // [groups of kOutputsAtOnce outputs, rows]
};

inline int64_t tile_scratch_bytes(const winnow_linear_layer&, int64_t rows, int64_t outputs) {
  const int64_t sums = round_up(rows, kRowsOfTwoTiles) * round_up(outputs, kOutputsAtOnce);
  return static_cast<int64_t>(sizeof(TilePanel[2])) + sums * static_cast<int64_t>(sizeof(float));
}

// Bytes from a row of sums to the next.
constexpr int64_t kSumBytes = kOutputsAtOnce * static_cast<int64_t>(sizeof(float));

// Sums of two tiles of rows with two of outputs, from memory to tiles and back; there are none at first.
inline void load_tile_sums(const float* top, bool begins) {
  if (begins) return zero_sums<4>();
  const float* bottom = top + kRowsOfTile * kOutputsAtOnce;
  finish_stores();
  _tile_loadd(0, top, kSumBytes);
  _tile_loadd(1, top + Vec::width, kSumBytes);
  _tile_loadd(2, bottom, kSumBytes);
  _tile_loadd(3, bottom + Vec::width, kSumBytes);
}
inline void store_tile_sums(float* top) {
  float* bottom = top + kRowsOfTile * kOutputsAtOnce;
  _tile_stored(0, top, kSumBytes);
  _tile_stored(1, top + Vec::width, kSumBytes);
  _tile_stored(2, bottom, kSumBytes);
  _tile_stored(3, bottom + Vec::width, kSumBytes);
  finish_stores();
}

// Adds the products of two tiles of rows with two of outputs, of so many blocks of inputs.
inline void add_pairs_of_tiles(const char* rows, const InputTile (*weights)[kTilesAtOnce], int64_t blocks) {
  finish_stores();
  for (int64_t block = 0; block < blocks; ++block, rows += 2 * kTileBytes) {
    _tile_loadd(4, rows, kLine);
    _tile_loadd(6, weights[block][0], kLine);
    _tile_loadd(7, weights[block][1], kLine);
    _tile_loadd(5, rows + kTileBytes, kLine);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

// Outputs of some rows that were laid.
template <int kBits>
class RowsInTiles {
 public:
  // The outputs [first, last).
  RowsInTiles(const winnow_linear_layer& layer, const LaidInputs& laid, int64_t rows, int64_t first, int64_t last,
              char* scratch)
      : layer_(layer),
        laid_(laid),
        held_(round_up(rows, kRowsOfTwoTiles)),
        first_(first),
        groups_(divide_up(last - first, kOutputsAtOnce)),
        scratch_(*reinterpret_cast<LayerTileScratch*>(scratch)) {}

  void add_up() {
    const Tiles tiles;
    Place place{0, 0};
    for (int64_t block = 0; block < blocks_of(place); ++block) lay(place, block, 0);
    for (int panel = 0; place.input < layer_.inputs; panel ^= 1) {
      const Place next = behind(place);
      multiply(place, next, panel);
      place = next;
    }
  }

  // Sums of a group of kOutputsAtOnce outputs, row after row.
  const float (*sums_of(int64_t group) const)[kOutputsAtOnce] { return scratch_.sums + group * held_; }

 private:
  // Of a panel: its first input, and its group of outputs. Groups take turns.
  struct Place {
    int64_t input, group;
  };

  Place behind(Place place) const {
    if (place.group + 1 < groups_) return {place.input, place.group + 1};
    return {place.input + kTilePanelInputs, 0};
  }

  // Behind the last input there are none.
  int64_t blocks_of(Place place) const {
    return place.input < layer_.inputs ? least(kPanelBlocks, input_blocks(layer_) - place.input / kTileChannels) : 0;
  }

  void lay(Place place, int64_t block, int panel) {
    lay_block<kBits>(layer_, place.input + block * kTileChannels, first_ + place.group * kOutputsAtOnce, block,
                     scratch_.panels[panel]);
  }

  // Products of all rows with a panel, while that of another place is laid.
  void multiply(Place place, Place next, int panel) {
    const int64_t blocks = blocks_of(place), to_lay = blocks_of(next), turns = kOutputTiles / kTilesAtOnce;
    const int64_t steps = held_ / kRowsOfTwoTiles * turns;
    int64_t laid = 0;
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t row = step / turns * kRowsOfTwoTiles, turn = step % turns;
      float* sums = scratch_.sums[place.group * held_ + row] + turn * kTilesAtOnce * Vec::width;
      load_tile_sums(sums, place.input == 0);
      add_pairs_of_tiles(tiles_at(layer_, laid_, laid_.first + row, place.input / kTileChannels),
                         scratch_.panels[panel].tiles[turn], blocks);
      store_tile_sums(sums);
      for (; laid * steps < to_lay * (step + 1); ++laid) lay(next, laid, panel ^ 1);
    }
  }

  const winnow_linear_layer& layer_;
  const LaidInputs laid_;
  const int64_t held_, first_, groups_;  // Rows of sums, an output, groups of outputs.
  LayerTileScratch& scratch_;
};

// The same group of outputs, where rows have it.
inline LinearRows group_of(const LinearRows& all, int64_t outputs) {
  LinearRows found = all;
  if (all.alone) found.outputs = static_cast<Bf16*>(all.outputs) + outputs;
  return found;
}

template <int kBits>
inline void multiply_in_tiles(const winnow_linear_layer& layer, const LinearRows& all, const LaidInputs& laid, int64_t first,
                              int64_t last, char* scratch) {
  RowsInTiles<kBits> rows(layer, laid, all.count, first, last, scratch);
  rows.add_up();
  const void* scales = kBits == 8 ? layer.scales : nullptr;
  for (int64_t output = first; output < last; output += kOutputsAtOnce) {
    const int64_t done = output - first;
    finish_rows<Bf16>(layer, rows.sums_of(done / kOutputsAtOnce), scales, group_of(all, done), output,
                      least(output + kOutputsAtOnce, last));
  }
}

inline void rows_in_tiles(const winnow_linear_layer& layer, const LinearRows& all, const LaidInputs& laid, int64_t first,
                          int64_t last, char* scratch) {
  if (layer.bits == 16) return multiply_in_tiles<16>(layer, all, laid, first, last, scratch);
  with_bits(layer, [&](auto bits) { multiply_in_tiles<bits>(layer, all, laid, first, last, scratch); });
}

}  // namespace
}  // namespace winnow
