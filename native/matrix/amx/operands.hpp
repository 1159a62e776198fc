// Keys, values and queries as the operands of products in tiles.
#pragma once

#include <cstring>

#include "attend/contract.hpp"
#include "matrix/amx/sizes.hpp"
#include "matrix/amx/split.hpp"
#include "matrix/queries.hpp"
#include "simd/avx512/transpose.hpp"
#include "simd/element.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Rows [tokens, dim] of keys -> rows of bf16, as they lie, up to a whole block of tokens and tile of channels.
inline void take_keys(const Shape& shape, const float* rows, int64_t dim, int64_t tokens, bool exact,
                      const TileScratch& tiles) {
  const int64_t words = padded_keys(shape) / 2;
  const auto half = [](__m512i numbers) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(numbers, 16)); };
  for (int64_t t = 0; t < kTileTokens; ++t) {
    for (int64_t d = 0; d < 2 * words; d += Vec::width) {
      const Vec numbers = t < tokens && d < dim ? load_up_to(rows + t * dim + d, dim - d) : broadcast(0.0f);
      const Split parts = split(numbers);
      uint32_t* to = tiles.keys + t * words + d / 2;
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), half(parts.first));
      if (!exact) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + tiles.key_words), half(parts.rest));
    }
  }
}

// Rows [tokens, dim] of values -> tiles whose rows are channels and whose pairs are tokens.
inline void take_values(const float* rows, int64_t dim, int64_t tokens, bool exact, const TileScratch& tiles) {
  for (int64_t d = 0; d < dim; d += Vec::width) {
    __m512i first[kTilePairs], rest[kTilePairs];
    for (int64_t i = 0; i < kTilePairs; ++i) {
      const auto at = [&](int64_t t) {
        return split(t < tokens ? load_up_to(rows + t * dim + d, dim - d) : broadcast(0.0f));
      };
      const Split a = at(2 * i), b = at(2 * i + 1);
      first[i] = pair(a.first, b.first);
      rest[i] = pair(a.rest, b.rest);
    }
    uint32_t* to = tiles.values + d / Vec::width * kTileWords;
    const auto put = [](__m512i(&words)[kTilePairs], uint32_t* at) {
      transpose(words);
      for (int64_t i = 0; i < kTilePairs; ++i) _mm512_storeu_si512(at + i * Vec::width, words[i]);
    };
    put(first, to);
    if (!exact) put(rest, to + tiles.value_words);
  }
}

// The same of the 32 channels from d on of rows in bf16: at(t, d) has them of a token. kInPairs: in the order of load_pair,
// the even ones first.
template <bool kInPairs, class Rows>
inline void turn_values(const Rows& at, int64_t d, uint32_t* tiles) {
  // Of every eight channels one half of the pairs has the first four, the other the others.
  unroll<2>([&](auto half) {
    __m512i pairs[kTilePairs];
    for (int64_t i = 0; i < kTilePairs; ++i) {
      const __m512i a = at(2 * i, d), b = at(2 * i + 1, d);
      pairs[i] = half ? _mm512_unpackhi_epi16(a, b) : _mm512_unpacklo_epi16(a, b);
    }
    transpose(pairs);
    uint32_t* to = tiles + d / kTilePairs * kTileWords;
    unroll<kTilePairs>([&](auto i) {
      constexpr int64_t channel = i / 4 * 8 + 4 * half + i % 4;
      constexpr int64_t place = kInPairs ? channel % 2 * kTilePairs + channel / 2 : channel;
      _mm512_storeu_si512(to + place * Vec::width, pairs[i]);
    });
  });
}

// Rows with whole tiles of channels.
template <bool kInPairs>
inline void take_values(const Bf16* rows, int64_t dim, int64_t tokens, const TileScratch& tiles) {
  const auto at = [&](int64_t t, int64_t d) {
    return t < tokens ? _mm512_loadu_si512(rows + t * dim + d) : _mm512_setzero_si512();
  };
  for (int64_t d = 0; d < dim; d += kTileChannels) turn_values<kInPairs>(at, d, tiles.values);
}

// Panels of queries, `dim` channels each -> tiles whose rows are pairs of channels.
inline void take_queries(const Shape& shape, float* panels, int64_t dim, const TileScratch& tiles) {
  const int64_t blocks = padded_keys(shape) / kTileChannels;
  for_query_vectors(shape, panels, dim, [&](int64_t first, const float* panel, int64_t lanes) {
    uint32_t* to = tiles.queries + first / Vec::width * blocks * kTileWords;
    for (int64_t d = 0; d < blocks * kTileChannels; d += 2, to += Vec::width) {
      const auto at = [&](int64_t channel) {
        return split(channel < dim ? load(panel + channel * lanes) : broadcast(0.0f));
      };
      const Split a = at(d), b = at(d + 1);
      _mm512_storeu_si512(to, pair(a.first, b.first));
      _mm512_storeu_si512(to + tiles.query_words, pair(a.rest, b.rest));
    }
  });
}

// sums [padded Dv, lanes] of a panel -> acc of its first `count` queries.
inline void give_sums(const float* sums, int64_t lanes, int64_t value_dim, int64_t count, float* acc, int64_t acc_width) {
  for (int64_t q = 0; q < count; q += Vec::width) {
    for (int64_t d = 0; d < value_dim; d += Vec::width) {
      __m512i block[16];
      for (int64_t i = 0; i < Vec::width; ++i) block[i] = _mm512_loadu_si512(sums + (d + i) * lanes + q);
      transpose(block);
      for (int64_t i = 0; i < least(Vec::width, count - q); ++i) {
        _mm512_storeu_si512(acc + (q + i) * acc_width + d, block[i]);
      }
    }
  }
}

}  // namespace
}  // namespace winnow
