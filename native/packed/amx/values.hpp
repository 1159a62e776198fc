// Weighted sums of packed integers as products in tiles of bytes. A row of the left tile is a half of a query's weights
// in int16 (see packed/avx512/int8_weights.hpp), a column of the right one a channel.
#pragma once

#include <immintrin.h>

#include <array>

#include "attend/contract.hpp"
#include "attend/weights.hpp"
#include "matrix/amx/channel_sums.hpp"
#include "matrix/amx/tiles.hpp"
#include "packed/amx/keys.hpp"
#include "packed/amx/numbers.hpp"
#include "packed/avx512/int8.hpp"
#include "packed/avx512/int8_values.hpp"
#include "packed/avx512/int8_weights.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Tokens of a tile of values.
constexpr int64_t kValueTokens = 64;
static_assert(kRowNumbers == kSummedChannels, "a block of a row fills four tiles");

// The first `tokens` rows of tiles, or fewer, a block of 64 channels of each: row r of tile k has, in its 16 columns,
// tokens 4·r .. 4·r + 3 of bytes 4·k .. 4·k + 3 of every lane of an unpacked row. What lies behind them has no weight.
// Asks for as many bytes from `ahead` on, little by little.
template <int kBits>
__attribute__((noinline)) void interleave_rows(const uint8_t* rows, int64_t bytes, int64_t dim, int64_t block,
                                               int64_t tokens, __m512i flip, const char* ahead, ValueTiles& tiles) {
  constexpr int64_t kStep = 4 * kRowNumbers / 8 * kBits;
  uint8_t* to = tiles.bytes[0][0];
  const auto interleave_four = [&](const std::array<int64_t, 4>& places) __attribute__((always_inline)) {
    __m512i row[4];
    unroll<4>([&](auto i) { row[i] = unpack_64<kBits>(rows + places[i], block, dim, flip); });
    const __m512i a = _mm512_unpacklo_epi8(row[0], row[1]), b = _mm512_unpacklo_epi8(row[2], row[3]);
    const __m512i c = _mm512_unpackhi_epi8(row[0], row[1]), d = _mm512_unpackhi_epi8(row[2], row[3]);
    _mm512_store_si512(to, _mm512_unpacklo_epi16(a, b));
    _mm512_store_si512(to + sizeof tiles.bytes[0], _mm512_unpackhi_epi16(a, b));
    _mm512_store_si512(to + 2 * sizeof tiles.bytes[0], _mm512_unpacklo_epi16(c, d));
    _mm512_store_si512(to + 3 * sizeof tiles.bytes[0], _mm512_unpackhi_epi16(c, d));
    rows += 4 * bytes;
    to += sizeof tiles.bytes[0][0];
  };
  const std::array<int64_t, 4> all{0, bytes, 2 * bytes, 3 * bytes};
  for (int64_t t = 0; t + 4 <= tokens; t += 4, ahead += kStep) {
    unroll<divide_up(kStep, kLine)>([&](auto line) { prefetch_busy(ahead + line * kLine); });
    interleave_four(all);
  }
  // Nothing is read past the last row, which stands for those behind it.
  const int64_t rest = tokens % 4;
  if (rest) interleave_four({0, rest > 1 ? bytes : 0, rest > 2 ? 2 * bytes : 0, 0});
}

// Sums of halves of all queries with four tiles of channels.
using ChannelSums = TileSums<int32_t, 4>;

// acc[q][16·k ..] += scale[q]·(sums of tile k + offset[q])
template <int kQueries>
inline void add_sums(const ChannelSums& from, const float* scale, const int32_t* offset, float* acc, int64_t acc_width) {
  unroll<kQueries>([&](auto q) {
    const Vec unit = broadcast(scale[q]);
    const __m512i surplus = _mm512_set1_epi32(offset[q]);
    unroll<4>([&](auto k) {
      const auto row = [&](int half) { return _mm512_load_si512(from.sums[k][2 * q + half]); };
      float* at = acc + q * acc_width + k * Vec::width;
      const Vec sum{_mm512_cvtepi32_ps(join(row(0), _mm512_add_epi32(row(1), surplus)))};
      store(at, fma(unit, sum, load(at)));
    });
  });
}

// Sums in the order of tiles -> in that of channels.
template <int kBits>
inline void order_tiles(int64_t dim, float* acc) {
  for (int64_t block = 0; block < dim; block += kRowNumbers, acc += kRowNumbers) {
    __m512i vectors[4];
    unroll<4>([&](auto tile) { vectors[tile] = _mm512_loadu_si512(acc + tile * Vec::width); });
    turn_quarters(vectors);
    unroll<4>([&](auto lane) { _mm512_storeu_si512(acc + unit_of<kBits>(lane) * Vec::width, vectors[lane]); });
  }
}

// acc[q] = sum over tokens of weights[q]·numbers, in the order of channels, with sums and weights of 2·kQueries rows;
// acc is zero before.
template <int kQueries, int kBits>
__attribute__((noinline)) void weigh_in_tiles(bool is_signed, Weights<kQueries>& weights, const uint8_t* rows,
                                              int64_t dim, int64_t tokens, const char* last, float* acc,
                                              int64_t acc_width) {
  const int64_t bytes = dim / 8 * kBits;
  const int32_t offset = is_signed ? offset_of(kBits) : 0;
  const __m512i flip = every_byte(offset);
  const int64_t blocks = dim / kRowNumbers;
  Int16Weights<kQueries> quantized;
  ValueTiles values[2];
  ChannelSums sums;
  int turn = 0;
  for (int64_t t = 0; t < tokens; t += kWeightSpan) {
    const int64_t span = t / kWeightSpan % quantized.kSets, count = least(kWeightSpan, tokens - t);
    if (span == 0) quantize_weights(offset, weights, t, tokens, quantized);
    const uint8_t* from = rows + t * bytes;
    const char* ahead = clamped_ahead_of(from, last) + kSpanAhead;
    const int64_t parts = divide_up(count, kValueTokens), taken = kValueTokens * bytes / blocks;
    // Products take long: while those of a part of a block are under way, the next is interleaved.
    const auto take = [&](int64_t block, int64_t part) {
      const int64_t first = part * kValueTokens;
      interleave_rows<kBits>(from + first * bytes, bytes, dim, block, least(kValueTokens, count - first), flip,
                             ahead + (2 * block + part) * taken, values[turn]);
    };
    take(0, 0);
    for (int64_t block = 0; block < blocks; ++block) {
      zero_sums<4>();
      for (int64_t part = 0; part < parts; ++part) {
        multiply_values(quantized.int16[span][0] + part * kValueTokens, kWeightSpan, values[turn]);
        turn ^= 1;
        if (part + 1 < parts) {
          take(block, part + 1);
        } else if (block + 1 < blocks) {
          take(block + 1, 0);
        }
      }
      store_sums(sums);
      add_sums<kQueries>(sums, quantized.scale[span], quantized.offset[span], acc + block * kRowNumbers, acc_width);
    }
  }
  for (int q = 0; q < kQueries; ++q) order_tiles<kBits>(dim, acc + q * acc_width);
}

}  // namespace
}  // namespace winnow
