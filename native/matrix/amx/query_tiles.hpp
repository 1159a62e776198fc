// Queries in bf16 as the right operands of products in tiles, whose rows are pairs of channels.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "attend/contract.hpp"
#include "attend/queries.hpp"
#include "matrix/amx/sizes.hpp"
#include "matrix/amx/token_sums.hpp"
#include "simd/element.hpp"
#include "simd/unroll.hpp"

namespace winnow {
namespace {

// A tile of columns for every 32 channels: row r has channels 2·r and 2·r + 1 of every query.
struct Bf16QueryTiles {
  alignas(64) uint32_t pairs[kMostTileDim / kTileChannels][kTilePairs][16];
};

// The queries [first, first + kQueries) as they are -> such tiles, one after another; those behind the last are zero.
template <int kQueries>
inline void turn_queries(const Shape& shape, const Queries& queries, int64_t first, uint32_t* tiles) {
  constexpr int64_t kLaneChannels = 8;
  for (int64_t four = 0; four < kQueries; four += 4) {
    const Bf16* from[4] = {};
    for (int64_t i = 0; i < 4 && four + i < kQueries && first + four + i < shape.queries; ++i) {
      from[i] = static_cast<const Bf16*>(query_at(shape, queries, first + four + i, sizeof(Bf16)));
    }
    for (int64_t d = 0; d < shape.key_dim; d += kLaneChannels) {
      __m128i rows[4];
      unroll<4>([&](auto i) {
        rows[i] = from[i] ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(from[i] + d)) : _mm_setzero_si128();
      });
      turn_four(rows, tiles + d / 2 * kTilePairs + four);
    }
  }
}

}  // namespace
}  // namespace winnow
