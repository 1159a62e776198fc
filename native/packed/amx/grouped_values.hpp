// Weighted sums of integers whose channel groups have scales, and zeros, of each slot, as products in tiles of bf16.
// Weights take the scales and are the sums of two bf16, a row of the left tile each; a column of the right one is a
// channel.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "attend/weights.hpp"
#include "dense/amx/values.hpp"
#include "matrix/amx/channel_sums.hpp"
#include "matrix/amx/split.hpp"
#include "matrix/amx/tiles.hpp"
#include "packed/amx/levels.hpp"
#include "packed/amx/numbers.hpp"
#include "packed/avx512/group_scales.hpp"
#include "packed/format.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Tokens whose weights are made before channels that share no tiles read them: few, since every group has its own.
constexpr int64_t kGroupSpan = 128, kMostGroups = kMostTileDim / kScaleGroup;

// Tiles of the weights of a span times the scales of every group, and of the weights times the zeros the sums so far, a
// lane for every token of a vector.
template <int kQueries>
struct GroupTiles {
  alignas(64) uint16_t tiles[kGroupSpan / kPairedTokens][kMostGroups][2 * kQueries][kPairedTokens];
  Vec zeros[kMostGroups][kQueries];
};

// Scales or zeros of all groups of up to a tile of tokens, [group][token]; zero behind the last token.
template <class T>
inline void spread_tile(const Groups<T>& groups, const T* from, int64_t tokens, float (&to)[kMostGroups][kPairedTokens]) {
  spread_groups(from, groups.count, 0, groups.count, tokens, to[0], kPairedTokens);
  if (tokens > Vec::width) return;
  for (int64_t group = 0; group < groups.count; ++group) store(to[group] + Vec::width, broadcast(0.0f));
}

// Weights of sixteen tokens and of the sixteen behind them, in pairs: what bf16 holds of them, and the rest.
__attribute__((always_inline)) inline void split_apart(Vec first, Vec second, uint16_t* held, uint16_t* rest) {
  const Split a = split(first), b = split(second);
  _mm512_store_si512(held, pair(a.first, b.first));
  _mm512_store_si512(rest, pair(a.rest, b.rest));
}

// Weights of a tile of tokens -> tiles for every group.
template <int kQueries, class T>
inline void scale_weights(const Groups<T>& groups, const float* weights, int64_t tokens, int64_t tile,
                          GroupTiles<kQueries>& to) {
  alignas(64) float scales[kMostGroups][kPairedTokens], zeros[kMostGroups][kPairedTokens];
  spread_tile(groups, groups.scales, tokens, scales);
  if (groups.zeros) spread_tile(groups, groups.zeros, tokens, zeros);
  for (int64_t group = 0; group < groups.count; ++group) {
    const Vec scale[2] = {load(scales[group]), load(scales[group] + Vec::width)};
    unroll<kQueries>([&](auto q) {
      const float* at = weights + q * kLogitStride;
      split_apart(load(at) * scale[0], load(at + Vec::width) * scale[1], to.tiles[tile][group][2 * q],
                  to.tiles[tile][group][2 * q + 1]);
    });
    if (!groups.zeros) continue;
    const Vec zero[2] = {load(zeros[group]), load(zeros[group] + Vec::width)};
    unroll<kQueries>([&](auto q) {
      const float* at = weights + q * kLogitStride;
      Vec& sum = to.zeros[group][q];
      sum = fma(load(at), zero[0], fma(load(at + Vec::width), zero[1], sum));
    });
  }
}

// The rows of a tile of tokens, or fewer, 64 channels of each: row r has tokens r and r + 16, two tiles 32 channels: of
// every eight in the order of Levels the first has four, the second the others. What lies behind the tokens has no weight.
// Asks for as many bytes from `ahead` on.
template <int kBits>
__attribute__((noinline)) void interleave_pairs(const uint8_t* rows, int64_t bytes, int64_t dim, int64_t block,
                                                int64_t tokens, const Levels<kBits>& levels_in_memory,
                                                const char* ahead, ValueTiles& tiles) {
  constexpr int64_t kStep = 2 * kRowNumbers / 8 * kBits;
  const Levels<kBits> levels = levels_in_memory;  // in registers: bytes that are written could be part of it
  for (int64_t t = 0; t < kPairedTokens / 2; ++t, ahead += kStep) {
    // Nothing is read past the last row, which stands for those behind it.
    const uint8_t* first = rows + least(t, tokens - 1) * bytes;
    const uint8_t* second = rows + least(t + kPairedTokens / 2, tokens - 1) * bytes;
    unroll<divide_up(kStep, kLine)>([&](auto line) { prefetch_busy(ahead + line * kLine); });
    unroll<2>([&](auto half) __attribute__((always_inline)) {
      const __m512i a = levels.template take<half>(first, block, dim), b = levels.template take<half>(second, block, dim);
      _mm512_store_si512(tiles.bytes[2 * half][t], _mm512_unpacklo_epi16(a, b));
      _mm512_store_si512(tiles.bytes[2 * half + 1][t], _mm512_unpackhi_epi16(a, b));
    });
  }
}

// Adds the products of tiles of weights, those of the first 32 channels and those of the others, with values to the sums
// in the tiles 0 to 3.
inline void multiply_groups(const void* first, const void* second, const ValueTiles& values) {
  finish_stores();
  _tile_loadd(4, first, 64);
  _tile_loadd(5, second, 64);
  _tile_loadd(6, values.bytes[0], 64);
  _tile_loadd(7, values.bytes[1], 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(6, values.bytes[2], 64);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(7, values.bytes[3], 64);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// Sums of 32 channels in the order of two tiles -> in that of channels.
inline void order_levels(float* acc) {
  const Vec a = load(acc), b = load(acc + Vec::width);
  const __m512i first = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(4));
  store(acc, Vec{_mm512_permutex2var_ps(a.v, first, b.v)});
  store(acc + Vec::width, Vec{_mm512_permutex2var_ps(a.v, second, b.v)});
}

// acc[q] += the sums of weights times zeros, the same for all channels of a group.
template <int kQueries>
inline void add_zeros(const GroupTiles<kQueries>& scaled, int64_t dim, int64_t size, float* acc, int64_t acc_width) {
  for (int64_t d = 0; d < dim; d += size) {
    unroll<kQueries>([&](auto q) {
      const Vec sum = broadcast(lane_sum(scaled.zeros[d / size][q]));
      float* to = acc + q * acc_width + d;
      for (int64_t i = 0; i < size; i += Vec::width) store(to + i, load(to + i) + sum);
    });
  }
}

// acc[q] = sum over tokens of weights[q]·values, in the order of channels, with sums and weights of 2·kQueries rows; acc
// is zero before.
template <int kQueries, int kBits, class T>
inline void weigh_groups_in_tiles(const Groups<T>& groups, bool is_signed, Weights<kQueries>& weights,
                                  const uint8_t* rows, int64_t dim, int64_t tokens, const char* last, float* acc,
                                  int64_t acc_width) {
  const int64_t bytes = dim / 8 * kBits;
  const Levels<kBits> levels(is_signed);
  GroupTiles<kQueries> scaled;
  ValueTiles values[2];
  for (auto& group : scaled.zeros) unroll<kQueries>([&](auto q) { group[q] = broadcast(0.0f); });
  for (int64_t t = 0; t < tokens; t += kGroupSpan) {
    const int64_t end = least(t + kGroupSpan, tokens);
    for (int64_t at = t; at < end; at += kPairedTokens) {
      const int64_t count = least(kPairedTokens, end - at);
      scale_weights<kQueries>(later(groups, at), weights.take(at, count), count, (at - t) / kPairedTokens, scaled);
    }
    for (int64_t block = 0; block < dim / kRowNumbers; ++block) {
      const int64_t first = block * kRowNumbers / groups.size;
      const int64_t second = (block * kRowNumbers + kRowNumbers / 2) / groups.size;
      const auto take = [&](int64_t at) __attribute__((always_inline)) {
        const uint8_t* from = rows + at * bytes;
        const char* ahead = clamped_ahead_of(from, last) + block * kPairedTokens * kRowNumbers / 8 * kBits;
        interleave_pairs<kBits>(from, bytes, dim, block, least(kPairedTokens, end - at), levels, ahead,
                                values[at / kPairedTokens % 2]);
      };
      take(t);
      zero_sums<4>();
      for (int64_t at = t; at < end; at += kPairedTokens) {
        if (at + kPairedTokens < end) take(at + kPairedTokens);
        const auto& tiles = scaled.tiles[(at - t) / kPairedTokens];
        multiply_groups(tiles[first], tiles[second], values[at / kPairedTokens % 2]);
      }
      add_sums<kQueries>(acc + block * kRowNumbers, acc_width);
    }
  }
  for (int64_t q = 0; q < kQueries; ++q) {
    for (int64_t d = 0; d < dim; d += kLevels) order_levels(acc + q * acc_width + d);
  }
  if (groups.zeros) add_zeros<kQueries>(scaled, dim, groups.size, acc, acc_width);
}

}  // namespace
}  // namespace winnow
