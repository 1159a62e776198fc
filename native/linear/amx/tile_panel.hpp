// A weight of any bits as tiles of bf16: a row has the pairs of two inputs, a column an output.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "linear/avx512/channels.hpp"
#include "linear/avx512/level_pairs.hpp"
#include "linear/avx512/level_values.hpp"
#include "linear/avx512/levels.hpp"
#include "linear/contract.hpp"
#include "matrix/amx/sizes.hpp"
#include "simd/avx512.hpp"
#include "simd/avx512/pairs.hpp"
#include "simd/avx512/transpose.hpp"
#include "simd/element.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"
#include "winnow_native.h"

namespace winnow {
namespace {

// Tiles beside each other, those of kOutputsAtOnce outputs, and how many of them meet two tiles of rows at a time.
constexpr int kOutputTiles = static_cast<int>(kOutputsAtOnce / Vec::width), kTilesAtOnce = 2;

// Blocks of inputs of a panel, each as many as a tile has. Sums that go through memory between panels take no time then, and
// what threads of a core keep still fits its second-level cache.
constexpr int64_t kPanelBlocks = 16, kTilePanelInputs = kPanelBlocks * kTileChannels;

using InputTile = __m512i[kTilePairs];

// Tiles in the order in which they are multiplied.
struct TilePanel {
  InputTile tiles[kOutputTiles / kTilesAtOnce][kPanelBlocks][kTilesAtOnce];

  InputTile& at(int64_t block, int tile) { return tiles[tile / kTilesAtOnce][block][tile % kTilesAtOnce]; }
};

// Bytes of a row of the weight from those that are laid to those that are asked for.
constexpr int64_t kLaidAhead = 4 * kLine;

// The 32 inputs from `input` on of kOutputsAtOnce outputs; those that there are not are zero.
template <class W>
inline void lay_turned(const winnow_linear_layer& layer, int64_t input, int64_t output, int64_t block, TilePanel& to) {
  using Channels = PairedChannels<W>;
  const int64_t rest = layer.inputs - input;
  for (int tile = 0; tile < kOutputTiles; ++tile, output += Vec::width) {
    const W* weight = static_cast<const W*>(layer.weight) + output * layer.inputs + input;
    const int64_t outputs = layer.outputs - output;
    __m512i rows[Vec::width];
    for (int64_t r = 0; r < Vec::width; ++r) {
      const W* row = weight + r * layer.inputs;
      __builtin_prefetch(reinterpret_cast<const char*>(row) + kLaidAhead);
      rows[r] = r >= outputs            ? _mm512_setzero_si512()
                : rest >= kTileChannels ? Channels::weight(row)
                                        : Channels::weight_up_to(row, rest);
    }
    transpose(rows);
    for (int64_t i = 0; i < kTilePairs; ++i) to.at(block, tile)[i] = rows[i];
  }
}

// What two inputs of outputs stand for, rounded to bf16.
template <int kVector, int kBits>
inline __m512i value_pair(const LevelPairs<kBits>& levels, const LevelValues<kBits>& values) {
  const __m512i both = levels.template numbers<kVector>();
  const Vec first = values.template value<kVector>(lower(Bf16{}, both));
  const Vec second = values.template value<kVector>(upper(Bf16{}, both));
  return _mm512_castps_si512(pair_lanes(first, second).v);
}

// Pairs of two inputs in the order of outputs.
template <int kBits>
inline void lay_pair(const LevelPairs<kBits>& levels, const LevelValues<kBits>& values, int64_t block, int64_t pair,
                     TilePanel& to) {
  unroll<kLevelSums / 2>([&](auto half) __attribute__((always_inline)) {
    const InOrder found(value_pair<half>(levels, values), value_pair<half + 2>(levels, values));
    to.at(block, 2 * half)[pair] = found.first;
    to.at(block, 2 * half + 1)[pair] = found.second;
  });
}

// The same of a weight of 4 to 6 bits.
template <int kBits>
inline void lay_group(const winnow_linear_layer& layer, int64_t input, int64_t output, int64_t block, TilePanel& to) {
  static_assert(kTileChannels == WINNOW_SCALE_GROUP);
  for_group<kBits>(layer, input, output, [&](const auto& levels, const auto& values, int64_t i) {
    lay_pair(levels, values, block, i / 2, to);
  });
}

// A block of a panel, from an input and an output on. kBits is 16 for a weight in bf16.
template <int kBits>
inline void lay_block(const winnow_linear_layer& layer, int64_t input, int64_t output, int64_t block, TilePanel& to) {
  if constexpr (kBits == 16) {
    lay_turned<Bf16>(layer, input, output, block, to);
  } else if constexpr (kBits == 8) {
    lay_turned<Int8>(layer, input, output, block, to);
  } else {
    lay_group<kBits>(layer, input, output, block, to);
  }
}

}  // namespace
}  // namespace winnow
