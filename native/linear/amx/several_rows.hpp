// A linear layer of several rows and a weight in bf16 or 8 bits, for AMX: rows of the weight are those of tiles, so that
// nothing is turned, and bf16 is read where it lies. Rows of inputs are columns, which are laid once.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <type_traits>

#include "linear/amx/many_rows.hpp"
#include "linear/avx512/channels.hpp"
#include "linear/contract.hpp"
#include "linear/finish.hpp"
#include "matrix/amx/sizes.hpp"
#include "matrix/amx/tiles.hpp"
#include "runtime/kernels.hpp"
#include "simd/avx512.hpp"
#include "simd/avx512/transpose.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"
#include "winnow_native.h"

namespace winnow {
namespace {

// Rows of two tiles of columns, the most; and those from which vectors take longer, where the weight lies as tiles read it and
// where these are made of bytes.
constexpr int64_t kMostSeveralRows = kRowsOfTwoTiles, kFewestSeveralRows = 4, kFewestRowsOfBytes = 12;

// Outputs whose rows of the weight are read side by side: those of two tiles.
constexpr int64_t kOutputsSideBySide = kRowsOfTwoTiles;

// Bytes of a row of the weight from those that are read to those that are asked for.
constexpr int64_t kRowAhead = 8 * kLine;

// 32 inputs of up to 32 rows: words of two inputs beside each other, of 16 rows and then of others.
struct ColumnTiles {
  uint32_t words[2][kTilePairs][kRowsOfTile];
};

inline int64_t column_bytes(const winnow_linear_layer& layer) {
  // Of all rows together there are as many bytes as of kMostSeveralRows.
  return layer.inputs * static_cast<int64_t>(sizeof(Bf16));
}

inline void lay_column(const winnow_linear_layer& layer, const LinearRows& all, const LaidInputs& to, int64_t row) {
  const auto* from = reinterpret_cast<const uint32_t*>(static_cast<const Bf16*>(all.inputs) + row * layer.inputs);
  auto* tiles = reinterpret_cast<ColumnTiles*>(to.memory);
  for (int64_t block = 0; block < layer.inputs / kTileChannels; ++block) {
    for (int64_t pair = 0; pair < kTilePairs; ++pair) {
      tiles[block].words[row / kRowsOfTile][pair][row % kRowsOfTile] = from[block * kTilePairs + pair];
    }
  }
}

// Rows of the weight as tiles read them.
template <class W>
class WeightTiles;

// Where they lie.
template <>
class WeightTiles<Bf16> {
 public:
  explicit WeightTiles(const winnow_linear_layer& layer)
      : weight_(static_cast<const char*>(layer.weight)), row_bytes_(layer.inputs * static_cast<int64_t>(sizeof(Bf16))) {}

  // Two tiles of the rows of kOutputsSideBySide outputs and a block of inputs. kPlace: of a block beside others.
  template <int kPlace>
  void take(int64_t output, int64_t block) {
    at_ = weight_ + output * row_bytes_ + block * kLine;
    for (int64_t row = 0; row < kOutputsSideBySide; ++row) prefetch(at_ + row * row_bytes_ + kRowAhead);
  }
  template <int kTile>
  const void* tile() const {
    return at_ + kTile * kRowsOfTile * row_bytes_;
  }
  int64_t row_bytes() const { return row_bytes_; }

 private:
  const char *weight_, *at_ = nullptr;
  const int64_t row_bytes_;
};

// Made of 8 bits: whole numbers, which bf16 holds.
template <>
class WeightTiles<Int8> {
 public:
  explicit WeightTiles(const winnow_linear_layer& layer)
      : weight_(static_cast<const Int8*>(layer.weight)), inputs_(layer.inputs) {}

  template <int kPlace>
  void take(int64_t output, int64_t block) {
    const Int8* from = weight_ + output * inputs_ + block * kTileChannels;
    at_ = numbers_[kPlace];
    for (int64_t row = 0; row < kOutputsSideBySide; ++row) {
      // A line has two blocks.
      if (kPlace == 0) prefetch(reinterpret_cast<const char*>(from + row * inputs_) + kRowAhead);
      numbers_[kPlace][row] = PairedChannels<Int8>::weight(from + row * inputs_);
    }
    finish_stores();
  }
  template <int kTile>
  const void* tile() const {
    return at_ + kTile * kRowsOfTile;
  }
  static constexpr int64_t row_bytes() { return kLine; }

 private:
  const Int8* weight_;
  const int64_t inputs_;
  const __m512i* at_ = nullptr;
  __m512i numbers_[2][kOutputsSideBySide];
};

// Sums of kOutputsSideBySide outputs from a multiple of it on, of all rows: [rows, kOutputsAtOnce].
template <class W>
class SeveralRows {
 public:
  SeveralRows(const winnow_linear_layer& layer, const LaidInputs& laid, int64_t rows)
      : columns_(reinterpret_cast<const ColumnTiles*>(laid.memory)),
        blocks_(layer.inputs / kTileChannels),
        rows_(rows),
        weight_(layer) {}

  void add_up(int64_t output, float* to) {
    zero_sums<4>();
    rows_ <= kRowsOfTile ? add_blocks(output) : add_columns(output);
    store_sums(sums_);
    unroll<2>([&](auto tile) __attribute__((always_inline)) {
      float* at = to + tile * Vec::width;
      if (rows_ <= kRowsOfTile) {
        give<2 * tile, true>(0, at);
      } else {
        give<2 * tile, false>(0, at);
        give<2 * tile + 1, false>(kRowsOfTile, at);
      }
    });
  }

 private:
  // Tiles of sums: of each tile of outputs the two of even blocks and of odd ones, whose products need not wait for each other.
  void add_blocks(int64_t output) {
    int64_t block = 0;
    for (; block + 1 < blocks_; block += 2) {
      add_even(output, block);
      weight_.template take<1>(output, block + 1);
      _tile_loadd(7, columns_[block + 1].words[0], kLine);
      _tile_loadd(4, weight_.template tile<0>(), weight_.row_bytes());
      _tile_loadd(5, weight_.template tile<1>(), weight_.row_bytes());
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
    if (block < blocks_) add_even(output, block);
  }
  void add_even(int64_t output, int64_t block) {
    weight_.template take<0>(output, block);
    _tile_loadd(6, columns_[block].words[0], kLine);
    _tile_loadd(4, weight_.template tile<0>(), weight_.row_bytes());
    _tile_loadd(5, weight_.template tile<1>(), weight_.row_bytes());
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
  }

  // Of each tile of outputs those of the first 16 rows and of the others.
  void add_columns(int64_t output) {
    for (int64_t block = 0; block < blocks_; ++block) {
      weight_.template take<0>(output, block);
      _tile_loadd(6, columns_[block].words[0], kLine);
      _tile_loadd(7, columns_[block].words[1], kLine);
      _tile_loadd(4, weight_.template tile<0>(), weight_.row_bytes());
      _tile_loadd(5, weight_.template tile<1>(), weight_.row_bytes());
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }

  // A tile of sums, and that behind it if kBoth, as those of the rows from `first` on.
  template <int kTile, bool kBoth>
  void give(int64_t first, float* to) const {
    __m512i outputs[Vec::width];
    for (int64_t i = 0; i < Vec::width; ++i) {
      Vec sum = load(sums_.sums[kTile][i]);
      if constexpr (kBoth) sum = sum + load(sums_.sums[kTile + 1][i]);
      outputs[i] = _mm512_castps_si512(sum.v);
    }
    transpose(outputs);
    const int64_t count = least(Vec::width, rows_ - first);
    for (int64_t r = 0; r < count; ++r) _mm512_storeu_si512(to + (first + r) * kOutputsAtOnce, outputs[r]);
  }

  const ColumnTiles* columns_;
  const int64_t blocks_, rows_;
  WeightTiles<W> weight_;
  TileSums<float, 4> sums_;
};

inline int64_t no_scratch_bytes(const winnow_linear_layer&, int64_t, int64_t) { return 0; }

template <class W>
inline void multiply_several(const winnow_linear_layer& layer, const LinearRows& all, const LaidInputs& laid, int64_t first,
                             int64_t last) {
  const Tiles tiles;
  const void* scales = std::is_same_v<W, Int8> ? layer.scales : nullptr;
  SeveralRows<W> rows(layer, laid, all.count);
  for (int64_t output = first; output < last; output += kOutputsAtOnce) {
    const int64_t end = least(output + kOutputsAtOnce, last);
    float sums[kMostSeveralRows][kOutputsAtOnce];
    for (int64_t o = output; o < end; o += kOutputsSideBySide) rows.add_up(o, sums[0] + (o - output));
    finish_rows<Bf16>(layer, sums, scales, group_of(all, output - first), output, end);
  }
}

// Vectors multiply outputs that do not fill tiles.
template <class W>
inline void several_rows(const winnow_linear_layer& layer, const LinearRows& all, const LaidInputs& laid, int64_t first,
                         int64_t last, char*) {
  const int64_t end = last % kOutputsSideBySide ? last / kOutputsAtOnce * kOutputsAtOnce : last;
  if (first < end) multiply_several<W>(layer, all, laid, first, end);
  if (end == last) return;
  const Kernels& kernels = isa::avx512;
  const auto by_vectors = (std::is_same_v<W, Int8> ? kernels.linear_int8 : kernels.linear)[WINNOW_BF16];
  by_vectors(layer, group_of(all, end - first), end, last);
}

}  // namespace
}  // namespace winnow
