// Logits of packed integers as products in tiles of bytes. A row of a tile is a token, a column one half of a query in
// int16 (see packed/avx512/int8.hpp): what is summed up is the same to the bit as without tiles.
#pragma once

#include <immintrin.h>

#include "attend/contract.hpp"
#include "matrix/amx/tiles.hpp"
#include "matrix/amx/token_sums.hpp"
#include "packed/amx/numbers.hpp"
#include "packed/avx512/int8.hpp"
#include "packed/avx512/int8_keys.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Queries of a tile go by fours: the high halves of four, the low ones of the same, then those of the next four.
constexpr int fours_of(int queries) { return divide_up(queries, 4); }
constexpr uint16_t columns_of(int queries) { return static_cast<uint16_t>(8 * fours_of(queries)); }

// A tile of columns for every 64 channels: row r has bytes 4·r .. 4·r + 3 of a row of unpacked numbers.
struct QueryTiles {
  alignas(64) int8_t bytes[kMostTileDim / kRowNumbers][16][64];
};

// Queries as quantize_queries leaves them -> tiles that meet numbers of kBits bits.
template <int kQueries, int kBits>
inline void turn_queries(const Int16Queries<kQueries>& queries, int64_t dim, QueryTiles& tiles) {
  constexpr int kBlock = Int16Queries<kQueries>::kBlock;
  constexpr int64_t kBytes = Int16Block<kBlock, Int16Halves>::kBytes;
  for (int four = 0; four < fours_of(kQueries); ++four) {
    for (int64_t block = 0; block < dim / kRowNumbers; ++block) {
      for (int lane = 0; lane < 4; ++lane) {
        const int8_t* from = queries.int16 + four * 2 * kBlock * dim + (block * 4 + unit_of<kBits>(lane)) * kBytes;
        for (int half = 0; half < 2; ++half) {
          __m128i rows[4];
          for (int q = 0; q < 4; ++q) {
            const auto* at = reinterpret_cast<const __m128i*>(from + (2 * q + half) * kBlockBytes);
            rows[q] = q < kBlock ? _mm_loadu_si128(at) : _mm_setzero_si128();
          }
          turn_four(rows, tiles.bytes[block][4 * lane] + (2 * four + half) * 16);
        }
      }
    }
  }
}

// logits[q][t] of a pair of tiles. Asks for `bytes` bytes from `ahead` on, meanwhile.
template <int kQueries>
inline void give_logits(const TokenSums& tokens, const Int16Queries<kQueries>& queries, int32_t offset,
                        const float* bias, const char* ahead, int64_t bytes, float* logits) {
  constexpr int kSteps = kPairTokens / Vec::width * fours_of(kQueries);
  for (int64_t t = 0; t < kPairTokens; t += Vec::width) {
    for (int four = 0; four < fours_of(kQueries); ++four, ahead += bytes / kSteps) {
      for (int64_t line = 0; line < bytes / kSteps; line += kLine) prefetch_busy(ahead + line);
      __m512i high[4], low[4];
      turn_sums(tokens.sums[t / Vec::width], 8 * four, high);
      turn_sums(tokens.sums[t / Vec::width], 8 * four + 4, low);
      unroll<4>([&](auto i) {
        const int q = 4 * four + i;
        if (q >= kQueries) return;
        const __m512i surplus = _mm512_set1_epi32(offset * queries.sum[q]);
        const Vec dots{_mm512_cvtepi32_ps(_mm512_sub_epi32(join(high[i], low[i]), surplus))};
        store(logits + q * kLogitStride + t, fma(dots, broadcast(queries.scale[q]), broadcast(bias[q])));
      });
    }
  }
}

// Unpacked rows of two tiles.
struct KeyBytes {
  alignas(64) uint8_t bytes[kPairTokens * kMostTileDim];
};

// The first `count` rows of a pair of tiles, of kBlocks blocks each. Asks for half as many bytes from `ahead` on:
// prefetching waits where it is asked for too much at once.
template <int kBits, int kBlocks>
__attribute__((noinline)) void unpack_rows(const uint8_t* rows, int64_t count, __m512i flip, const char* ahead,
                                           uint8_t* to) {
  constexpr int64_t kDim = kBlocks * kRowNumbers, kBytes = kDim / 8 * kBits;
  const auto unpack_row = [&](const uint8_t* row, uint8_t* out) __attribute__((always_inline)) {
    unroll<kBlocks>([&](auto block) __attribute__((always_inline)) {
      _mm512_store_si512(out + block * kRowNumbers, unpack_64<kBits>(row, block, kDim, flip));
    });
  };
  int64_t t = 0;
  for (; t + 4 <= count; t += 4, rows += 4 * kBytes, to += 4 * kDim, ahead += 2 * kBytes) {
    for (int64_t line = 0; line < 2 * kBytes; line += kLine) prefetch_busy(ahead + line);
    unroll<4>([&](auto i) __attribute__((always_inline)) { unpack_row(rows + i * kBytes, to + i * kDim); });
  }
  for (; t < count; ++t, rows += kBytes, to += kDim) unpack_row(rows, to);
}

// Products of two tiles of keys, `dim` bytes each, with the queries, in the tiles 0 and 1.
template <bool kSigned>
inline void multiply_keys(const uint8_t* keys, int64_t dim, const QueryTiles& queries) {
  finish_stores();
  zero_sums<2>();
  for (int64_t block = 0; block < dim / kRowNumbers; ++block) {
    const uint8_t* at = keys + block * kRowNumbers;
    _tile_loadd(6, queries.bytes[block], 64);
    _tile_loadd(4, at, dim);
    _tile_loadd(5, at + 16 * dim, dim);
    if constexpr (kSigned) {
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 5, 6);
    } else {
      _tile_dpbusd(0, 4, 6);
      _tile_dpbusd(1, 5, 6);
    }
  }
}

// logits[q][t] = query[q] · numbers[t] + bias[q], with tiles of 16 rows and columns_of(kQueries) columns; writes up to a
// pair of tiles past the last token.
template <int kQueries, int kBits>
__attribute__((noinline)) void score_in_tiles(bool is_signed, const float* query, int64_t dim, const float* bias,
                                              const uint8_t* rows, int64_t tokens, const char* last, int8_t* halves,
                                              float* logits) {
  const int64_t bytes = dim / 8 * kBits;
  // Bytes are multiplied as they are.
  const bool flipped = is_signed && kBits != 8;
  const int32_t offset = flipped ? offset_of(kBits) : 0;
  const __m512i flip = every_byte(offset);
  QueryTiles tiles;
  const auto queries = quantize_queries<kQueries>(query, dim, halves);
  turn_queries<kQueries, kBits>(queries, dim, tiles);
  KeyBytes keys[2];
  TokenSums sums;
  // The bytes of a pair of tiles.
  const auto take = [&](int64_t t) {
    const int64_t count = least(kPairTokens, tokens - t);
    const uint8_t* from = rows + t * bytes;
    const char* ahead = clamped_ahead_of(from, last);
    if (kBits == 8 && count == kPairTokens) {
      for (int64_t line = 0; line < kPairTokens / 2 * bytes; line += kLine) prefetch_busy(ahead + line);
      return from;
    }
    uint8_t* to = keys[t / kPairTokens % 2].bytes;
    for_blocks(dim, [&](auto blocks) { unpack_rows<kBits, decltype(blocks)::value>(from, count, flip, ahead, to); });
    return static_cast<const uint8_t*>(to);
  };
  const uint8_t* numbers = take(0);
  for (int64_t t = 0; t < tokens; t += kPairTokens) {
    if (kBits == 8 && is_signed) {
      multiply_keys<true>(numbers, dim, tiles);
    } else {
      multiply_keys<false>(numbers, dim, tiles);
    }
    // Products take long: meanwhile the next tokens are unpacked.
    if (t + kPairTokens < tokens) numbers = take(t + kPairTokens);
    store_sums(sums);
    // The rest of what the unpacking of the next ones asked for.
    const char* ahead = clamped_ahead_of(rows + (t + kPairTokens) * bytes, last) + kPairTokens / 2 * bytes;
    give_logits(sums, queries, offset, bias, ahead, kPairTokens / 2 * bytes, logits + t);
  }
}

}  // namespace
}  // namespace winnow
