// Logits of integers with scales of channel groups, or of channels of 32 slots (KIVI), as products in tiles of bf16. A row
// of a tile is a token; eight columns are what bf16 holds of queries, cut off, the next eight the rest.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "attend/contract.hpp"
#include "matrix/amx/query_tiles.hpp"
#include "matrix/amx/sizes.hpp"
#include "matrix/amx/tiles.hpp"
#include "matrix/amx/token_sums.hpp"
#include "packed/amx/levels.hpp"
#include "packed/amx/numbers.hpp"
#include "packed/avx512/group_scales.hpp"
#include "packed/format.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Queries in fp32, a row for every two channels in the order of Levels: those of the first query, of the second and so on.
// Behind the last query they are zero.
struct PairedQueries {
  alignas(64) float rows[kMostTileDim / 2][2 * kMostTileQueries];
};

// `block` is in the order of scratch.
template <int kQueries>
inline void pair_channels(const float* block, int64_t dim, PairedQueries& paired) {
  if (kQueries < kMostTileQueries) std::memset(paired.rows, 0, static_cast<size_t>(dim / 2) * sizeof paired.rows[0]);
  for (int64_t d = 0; d < dim; d += kLevels) {
    unroll<kQueries>([&](auto q) {
      alignas(64) float dealt[kLevels];
      Vec even = load(block + d * kQueries + q * Vec::width);
      Vec odd = load(block + (d + Vec::width) * kQueries + q * Vec::width);
      deal_lanes(even, odd);
      store(dealt, even);
      store(dealt + Vec::width, odd);
      unroll<kLevels / 2>([&](auto i) {
        std::memcpy(&paired.rows[d / 2 + i][2 * q], dealt + 2 * i, 2 * sizeof(float));
      });
    });
  }
}

// A row of pairs -> a row of a tile of columns.
inline void split_row(__m512 row, uint32_t* to) {
  const __m512i cut = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const __m512 held = _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(row), cut));
  const __m512bh halves = _mm512_cvtne2ps_pbh(_mm512_sub_ps(row, held), held);
  std::memcpy(to, &halves, sizeof halves);
}

// Queries as they are -> tiles.
inline void split_queries(const PairedQueries& paired, int64_t dim, Bf16QueryTiles& tiles) {
  for (int64_t row = 0; row < dim / 2; ++row) {
    split_row(_mm512_load_ps(paired.rows[row]), tiles.pairs[row / kTilePairs][row % kTilePairs]);
  }
}

// Queries times the scales of the channels of 32 slots -> tiles; bias[q] takes their products with the zeros.
template <class T>
inline void fold_queries(const PairedQueries& paired, const T* scales, const T* zeros, int64_t dim,
                         Bf16QueryTiles& tiles, float (&bias)[kMostTileQueries]) {
  alignas(64) float scale[kMostTileDim], zero[kMostTileDim];
  for (int64_t d = 0; d < dim; d += kLevels) {
    const auto deal = [&](const T* from, float* to) {
      Vec even, odd;
      load_dealt(from + d, even, odd);
      store(to + d, even);
      store(to + d + Vec::width, odd);
    };
    deal(scales, scale);
    deal(zeros, zero);
  }
  const auto both = [](const float* pair) {
    double bits;
    std::memcpy(&bits, pair, sizeof bits);
    return _mm512_castpd_ps(_mm512_set1_pd(bits));
  };
  __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int64_t row = 0; row < dim / 2; row += 2) {
    unroll<2>([&](auto i) {
      const __m512 queries = _mm512_load_ps(paired.rows[row + i]);
      split_row(_mm512_mul_ps(queries, both(scale + 2 * (row + i))), tiles.pairs[row / kTilePairs][(row + i) % kTilePairs]);
      sums[i] = _mm512_fmadd_ps(queries, both(zero + 2 * (row + i)), sums[i]);
    });
  }
  const __m512 sum = _mm512_add_ps(sums[0], sums[1]);
  const __m512 pairs = _mm512_add_ps(sum, _mm512_movehdup_ps(sum));
  _mm512_mask_compressstoreu_ps(bias, 0x5555, pairs);
}

// Rows of two tiles of tokens in bf16.
struct LevelRows {
  alignas(64) uint8_t bytes[kPairTokens * kMostTileDim * 2];
};

// The first `count` rows, of kBlocks·64 channels. Asks for as many bytes from `ahead` on.
template <int kBits, int kBlocks>
__attribute__((noinline)) void write_levels(const uint8_t* rows, int64_t count,
                                            const Levels<kBits>& levels_in_memory, const char* ahead,
                                            LevelRows& to) {
  constexpr int64_t kDim = kBlocks * kRowNumbers, kBytes = kDim / 8 * kBits;
  const Levels<kBits> levels = levels_in_memory;  // in registers: bytes that are written could be part of it
  uint8_t* row = to.bytes;
  const auto write_row = [&](int64_t t) __attribute__((always_inline)) {
    unroll<kBlocks>([&](auto block) __attribute__((always_inline)) {
      unroll<2>([&](auto half) __attribute__((always_inline)) {
        _mm512_store_si512(row + 2 * kDim * t + 128 * block + 64 * half,
                           levels.template take<half>(rows + kBytes * t, block, kDim));
      });
    });
  };
  int64_t t = 0;
  for (; t + 4 <= count; t += 4, rows += 4 * kBytes, ahead += 4 * kBytes, row += 8 * kDim) {
    for (int64_t line = 0; line < 4 * kBytes; line += kLine) prefetch_busy(ahead + line);
    unroll<4>([&](auto i) __attribute__((always_inline)) { write_row(i); });
  }
  for (int64_t i = 0; t + i < count; ++i) write_row(i);
}

// Sums of the products of the channels [first, first + count) of two tiles of tokens with queries.
inline void multiply_levels(const LevelRows& rows, int64_t dim, int64_t first, int64_t count,
                            const Bf16QueryTiles& queries, TileSums<float, 2>& sums) {
  finish_stores();
  zero_sums<2>();
  for (int64_t d = first; d < first + count; d += kTileChannels) {
    const uint8_t* at = rows.bytes + 2 * d;
    _tile_loadd(6, queries.pairs[d / kTileChannels], 64);
    _tile_loadd(4, at, 2 * dim);
    _tile_loadd(5, at + 32 * dim, 2 * dim);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
  }
  store_sums(sums);
}

// logits[q][t] of sixteen tokens, whose sums are rows: both columns of a query and its bias.
template <int kQueries>
inline void join_columns(const float (*sums)[16], const float (&bias)[kMostTileQueries], float* logits) {
  const auto* rows = reinterpret_cast<const int32_t(*)[16]>(sums);
  for (int four = 0; four < kQueries; four += 4) {
    __m512i held[4], rest[4];
    turn_sums(rows, four, held);
    turn_sums(rows, kMostTileQueries + four, rest);
    unroll<4>([&](auto i) {
      if (four + i >= kQueries) return;
      const Vec sum = Vec{_mm512_castsi512_ps(held[i])} + Vec{_mm512_castsi512_ps(rest[i])};
      store(logits + (four + i) * kLogitStride, sum + broadcast(bias[four + i]));
    });
  }
}

// Calls body(t, rows) for every two tiles of tokens, whose numbers are rows.
template <int kBits, class Body>
inline void for_level_rows(bool is_signed, const uint8_t* rows, int64_t dim, int64_t tokens, const char* last,
                           const Body& body) {
  const int64_t bytes = dim / 8 * kBits;
  const Levels<kBits> levels(is_signed);
  LevelRows written;
  for (int64_t t = 0; t < tokens; t += kPairTokens) {
    const uint8_t* from = rows + t * bytes;
    for_blocks(dim, [&](auto blocks) {
      write_levels<kBits, decltype(blocks)::value>(from, least(kPairTokens, tokens - t), levels,
                                                   clamped_ahead_of(from, last), written);
    });
    body(t, written);
  }
}

static_assert(kPairTokens == kScaleGroup, "two tiles of tokens have one set of scales");

// logits[q][t] of keys whose channels have scales and zeros of 32 slots, those of the first slots at `scales` and `zeros`;
// writes up to two tiles past the last token.
template <int kQueries, int kBits, class T>
inline void score_channels_in_tiles(const T* scales, const T* zeros, const float* block, const uint8_t* rows,
                                    int64_t dim, int64_t tokens, const char* last, float* logits) {
  PairedQueries paired;
  Bf16QueryTiles tiles;
  TileSums<float, 2> sums;
  alignas(64) float bias[kMostTileQueries];
  pair_channels<kQueries>(block, dim, paired);
  for_level_rows<kBits>(false, rows, dim, tokens, last, [&](int64_t t, const LevelRows& written) {
    const int64_t group = t / kScaleGroup * dim;
    fold_queries(paired, scales + group, zeros + group, dim, tiles, bias);
    multiply_levels(written, dim, 0, dim, tiles, sums);
    unroll<2>([&](auto tile) { join_columns<kQueries>(sums.sums[tile], bias, logits + t + tile * Vec::width); });
  });
}

// Sums of groups times the scales of their tokens, [token][group] -> in the place of those of the first.
inline void join_groups(const float* scales, int64_t groups, TileSums<float, 2>* sums) {
  for (int64_t t = 0; t < kPairTokens; ++t) {
    Vec sum = load(sums[0].sums[0][t]) * broadcast(scales[t * groups]);
    for (int64_t group = 1; group < groups; ++group) {
      sum = fma(load(sums[group].sums[0][t]), broadcast(scales[t * groups + group]), sum);
    }
    store(sums[0].sums[0][t], sum);
  }
}

// The same for keys whose channel groups have scales of each slot.
template <int kQueries, int kBits, class T>
inline void score_groups_in_tiles(const Groups<T>& groups, const float* block, const uint8_t* rows, int64_t dim,
                                  int64_t tokens, const char* last, float* logits) {
  constexpr float kNoBias[kMostTileQueries] = {};
  PairedQueries paired;
  Bf16QueryTiles tiles;
  TileSums<float, 2> sums[kMostTileDim / kScaleGroup];
  pair_channels<kQueries>(block, dim, paired);
  split_queries(paired, dim, tiles);
  for_level_rows<kBits>(true, rows, dim, tokens, last, [&](int64_t t, const LevelRows& written) {
    const int64_t count = least(kPairTokens, tokens - t) * groups.count;
    alignas(64) float scales[kPairTokens * kMostTileDim / kScaleGroup];
    for (int64_t i = 0; i < count; i += Vec::width) {
      store(scales + i, load_up_to(groups.scales + t * groups.count + i, count - i));
    }
    for (int64_t group = 0; group < groups.count; ++group) {
      multiply_levels(written, dim, group * groups.size, groups.size, tiles, sums[group]);
    }
    join_groups(scales, groups.count, sums);
    unroll<2>([&](auto tile) { join_columns<kQueries>(sums[0].sums[tile], kNoBias, logits + t + tile * Vec::width); });
  });
}

}  // namespace
}  // namespace winnow
