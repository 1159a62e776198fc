// Weighted sums of dense values in bf16 as products in tiles. Weights are the sums of two bf16, a row of the left tile
// each; a column of the right one is a channel.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "attend/contract.hpp"
#include "attend/weights.hpp"
#include "matrix/amx/channel_sums.hpp"
#include "matrix/amx/sizes.hpp"
#include "matrix/amx/tiles.hpp"
#include "matrix/amx/token_sums.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Tokens of a tile, and of those whose weights are split before channels that share no tiles read them again.
constexpr int64_t kPairedTokens = 32, kDenseSpan = 512;
static_assert(kPairedTokens == kWeightTokens, "weights come a tile at a time");

// Tiles of weights of a span: row 2·q has what bf16 holds of query q's, cut off, and the next row the rest.
template <int kQueries>
struct SplitWeights {
  alignas(64) uint16_t tiles[kDenseSpan / kPairedTokens][2 * kQueries][kPairedTokens];
};

// Rows of weights, kLogitStride apart -> a tile of them.
template <int kQueries>
inline void split_weights(const float* weights, uint16_t (&tile)[2 * kQueries][kPairedTokens]) {
  const __m512i cut = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const auto first = [&](__m512 a) { return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), cut)); };
  const auto put = [](uint16_t* row, __m512 low, __m512 high) {
    const __m512bh halves = _mm512_cvtne2ps_pbh(high, low);
    std::memcpy(row, &halves, sizeof halves);
  };
  unroll<kQueries>([&](auto q) {
    const __m512 a = load(weights + q * kLogitStride).v, b = load(weights + q * kLogitStride + Vec::width).v;
    put(tile[2 * q], first(a), first(b));
    put(tile[2 * q + 1], _mm512_sub_ps(a, first(a)), _mm512_sub_ps(b, first(b)));
  });
}

// The first `tokens` rows of tiles, or fewer, 64 channels of each: row r has tokens 2·r and 2·r + 1. Of 32 channels in
// eights, one tile has the first four of every eight and the next the others. What lies behind the tokens has no weight.
// Asks for as many bytes as 64 channels have from `ahead` on.
inline void pair_rows(const Bf16* rows, int64_t dim, int64_t tokens, const char* ahead, ValueTiles& tiles) {
  const int64_t bytes = dim * static_cast<int64_t>(sizeof(Bf16));
  for (int64_t t = 0; t < tokens; t += 2, rows += 2 * dim, ahead += 2 * bytes) {
    // Nothing is read past the last row.
    const Bf16* second = t + 1 < tokens ? rows + dim : rows;
    __m512i a[2], b[2];
    unroll<2>([&](auto half) { a[half] = _mm512_loadu_si512(rows + half * kTileChannels); });
    unroll<2>([&](auto half) { prefetch(ahead + half * kLine); });
    unroll<2>([&](auto half) { b[half] = _mm512_loadu_si512(second + half * kTileChannels); });
    unroll<2>([&](auto half) { prefetch(ahead + bytes + half * kLine); });
    unroll<2>([&](auto half) {
      _mm512_store_si512(tiles.bytes[2 * half][t / 2], _mm512_unpacklo_epi16(a[half], b[half]));
      _mm512_store_si512(tiles.bytes[2 * half + 1][t / 2], _mm512_unpackhi_epi16(a[half], b[half]));
    });
  }
  // Zeros weigh nothing; what lies in memory may be no number.
  for (int64_t t = round_up(tokens, 2); t < kPairedTokens; t += 2) {
    unroll<4>([&](auto tile) { _mm512_store_si512(tiles.bytes[tile][t / 2], _mm512_setzero_si512()); });
  }
}

// acc[q][..64) += the sums in the tiles 0 to 3, those of both rows of weights of a query.
template <int kQueries>
inline void add_sums(float* acc, int64_t acc_width) {
  TileSums<float, 4> sums;
  store_sums(sums);
  unroll<kQueries>([&](auto q) {
    unroll<4>([&](auto tile) {
      float* at = acc + q * acc_width + tile * Vec::width;
      store(at, load(at) + (load(sums.sums[tile][2 * q]) + load(sums.sums[tile][2 * q + 1])));
    });
  });
}

// Sums of 32 channels in the order of two tiles -> in that of load_pair for Bf16: the even ones first.
inline void order_channels(float* acc) {
  Vec even = load(acc), odd = load(acc + Vec::width);
  deal_lanes(even, odd, _mm512_setr_epi32(0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30));
  store(acc, even);
  store(acc + Vec::width, odd);
}

// acc[q] = sum over tokens of weights[q]·values in the order of Partial, with sums and weights of 2·kQueries rows; acc
// is zero before.
template <int kQueries>
inline void weigh_in_tiles(const Shape& shape, const Chunk& chunk, Weights<kQueries>& weights, float* acc) {
  const int64_t dim = shape.value_dim;
  const Bf16* values = static_cast<const Bf16*>(chunk.values);
  const Bf16* last = values + chunk.tokens * dim - 1;
  SplitWeights<kQueries> split;
  ValueTiles paired;
  // Giving sums out waits for all that is being read. Where tiles hold those of all channels, it is done once.
  const int64_t longest = dim == kSummedChannels ? chunk.tokens : kDenseSpan;
  for (int64_t t = 0; t < chunk.tokens; t += longest) {
    const int64_t end = least(t + longest, chunk.tokens);
    for (int64_t d = 0; d < dim; d += kSummedChannels) {
      zero_sums<4>();
      for (int64_t at = t; at < end; at += kPairedTokens) {
        const int64_t count = least(kPairedTokens, end - at);
        const Bf16* rows = values + at * dim + d;
        // Where a span is longer than its tiles, each is met once, just after it was split.
        auto& tile = split.tiles[(at - t) / kPairedTokens % (kDenseSpan / kPairedTokens)];
        if (d == 0) split_weights<kQueries>(weights.take(at, count), tile);
        pair_rows(rows, dim, count, clamped_ahead_of(rows, last), paired);
        multiply_values(tile[0], 64, paired);
      }
      add_sums<kQueries>(acc + d, shape.value_width);
    }
  }
  for (int64_t q = 0; q < kQueries; ++q) {
    for (int64_t d = 0; d < dim; d += 2 * Vec::width) order_channels(acc + q * shape.value_width + d);
  }
}

}  // namespace
}  // namespace winnow
