// Few queries that meet tokens in tiles: their blocks, numbers turned into columns, and sums of products, which are turned
// into rows of tokens.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "attend/queries.hpp"
#include "matrix/amx/tiles.hpp"
#include "simd/avx512/sixteen_rows.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Channels of a head, at most, and queries that meet it together.
constexpr int64_t kMostTileDim = 256;
constexpr int kMostTileQueries = 8;

// Tokens whose products are taken together: two tiles.
constexpr int64_t kPairTokens = 32;

// A chunk of fewer tokens than this is not worth the setting up of tiles.
constexpr int64_t kFewestTileTokens = 64;

// Calls body(first, Count<size>) for blocks that cover n queries. The last may run past n: columns of a tile cost little,
// another pass over keys and values much.
template <class Body>
inline void for_tile_blocks(int64_t n, const Body& body) {
  for (int64_t first = 0; first < n; first += kMostTileQueries) {
    switch (least(kMostTileQueries, n - first)) {
      case 1: body(first, Count<1>{}); break;
      case 2: body(first, Count<2>{}); break;
      case 3:
      case 4: body(first, Count<4>{}); break;
      default: body(first, Count<kMostTileQueries>{});
    }
  }
}

// Four rows of 16 bytes -> row r of `to`, a row of a tile each: bytes 4·r .. 4·r + 3 of all four.
inline void turn_four(const __m128i (&rows)[4], void* to) {
  const __m128i a = _mm_unpacklo_epi32(rows[0], rows[1]), b = _mm_unpacklo_epi32(rows[2], rows[3]);
  const __m128i c = _mm_unpackhi_epi32(rows[0], rows[1]), d = _mm_unpackhi_epi32(rows[2], rows[3]);
  const __m128i turned[4] = {_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b), _mm_unpacklo_epi64(c, d),
                             _mm_unpackhi_epi64(c, d)};
  for (int r = 0; r < 4; ++r) _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<char*>(to) + 64 * r), turned[r]);
}

// Sums of products, integers or floats, of a pair of tiles of tokens: columns are those of queries.
using TokenSums = TileSums<int32_t, 2>;

// Sixteen rows -> lane t of turned[i]: row t, for four columns from `column` on.
inline void turn_sums(const int32_t (*rows)[16], int column, __m512i (&turned)[4]) {
  __m512i fours[4];
  for (int i = 0; i < 4; ++i) {
    const auto at = [&](int row) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + column)); };
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(at(i)), at(4 + i), 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(at(8 + i)), at(12 + i), 1);
    fours[i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
  turn_rows(fours, turned);
}

}  // namespace
}  // namespace winnow
