// Dense latents in bf16 as products of pairs, for AVX-512 BF16: lanes of logits are tokens, and lanes of sums channels.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "attend/contract.hpp"
#include "attend/partials.hpp"
#include "attend/queries.hpp"
#include "attend/weights.hpp"
#include "dense/avx512/pair_values.hpp"
#include "latent/scratch.hpp"
#include "simd/avx512/pairs.hpp"
#include "simd/avx512/token_lanes.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Queries that meet a tile of tokens together, and the channels of a query, at most. Between queries in memory there are a few
// more: they would otherwise fall into the same cache sets.
constexpr int kMostAsking = 16;
constexpr int64_t kMostAsked = 1024, kAskingApart = kMostAsked + 32;

// Queries under whose weights latents are summed up together: each has two sums for every strip of channels.
constexpr int kMostWeighed = 8;

// Queries as they are, those of the padding zero.
struct AskingRows {
  alignas(64) Bf16 rows[kMostAsking * kAskingApart];

  AskingRows(const Shape& shape, const Queries& queries, int64_t first, int count) {
    const auto bytes = static_cast<size_t>(shape.key_dim) * sizeof(Bf16);
    for (int q = 0; q < count; ++q) {
      Bf16* to = rows + q * kAskingApart;
      if (first + q < shape.queries) {
        std::memcpy(to, query_at(shape, queries, first + q, sizeof(Bf16)), bytes);
      } else {
        std::memset(to, 0, bytes);
      }
    }
  }
};

// A tile of tokens: rows of `dim` channels.
struct TileRows {
  const Bf16* first;
  int64_t dim;
  const char* ahead;  // to ask for meanwhile
};

template <int kQueries>
using TokenSums = __m512[kQueries * token_vectors(kQueries)];

// Adds the products of some channels of a tile with those of the queries.
template <int kQueries>
__attribute__((always_inline)) inline void add_tile(const Bf16* queries, const TileRows& tile, TokenSums<kQueries>& sums) {
  constexpr int64_t kBytes = kLaneChannels * sizeof(Bf16);
  constexpr int64_t kLines = token_vectors(kQueries) * Vec::width * kBytes / kLine;
  const char *rows = reinterpret_cast<const char*>(tile.first), *ahead = tile.ahead;
  const int64_t stride = tile.dim * static_cast<int64_t>(sizeof(Bf16));
  for (int64_t d = 0; d < tile.dim; d += kLaneChannels, rows += kBytes, ahead += kLines * kLine) {
    unroll<kLines>([&](auto line) { prefetch_busy(ahead + line * kLine); });
    add_channels<kQueries, kAskingApart, Bf16Pairs>(queries + d, rows, stride, sums);
  }
}

// Rows of a chunk, a tile at a time.
class TiledRows {
 public:
  TiledRows(const void* rows, int64_t tokens, int64_t dim, int64_t tile, Bf16* edge)
      : rows_(static_cast<const Bf16*>(rows)), end_(rows_ + tokens * dim), dim_(dim), tile_(tile), edge_(edge) {}

  // From a token on. The last tile is copied where it is not whole, since nothing behind the rows may be read, with zeros for
  // the rest: stray memory is full of subnormals.
  TileRows from(int64_t token) const {
    const Bf16* first = rows_ + token * dim_;
    const int64_t used = least(tile_ * dim_, end_ - first);
    const char* ahead = clamped_ahead_of(first, end_ - 1);
    if (used == tile_ * dim_) return {first, dim_, ahead};
    std::memcpy(edge_, first, static_cast<size_t>(used) * sizeof(Bf16));
    std::memset(edge_ + used, 0, static_cast<size_t>(tile_ * dim_ - used) * sizeof(Bf16));
    return {edge_, dim_, ahead};
  }

 private:
  const Bf16 *rows_, *end_;
  int64_t dim_, tile_;
  Bf16* edge_;
};

// logits[q][t] of kQueries queries and all tokens; writes up to a tile past the last token.
template <int kQueries>
void score_latents(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first, const Scratch& scratch) {
  constexpr int kVectors = token_vectors(kQueries);
  constexpr int64_t kTokens = kVectors * Vec::width;
  const AskingRows asking(shape, queries, first, kQueries);
  const int64_t dim = shape.value_dim;
  auto* edge = static_cast<Bf16*>(scratch.edge);
  const TiledRows latents(chunk.keys, chunk.tokens, dim, kTokens, edge);
  const TiledRows rotated(chunk.values, chunk.tokens, rotated_dim(shape), kTokens, edge + kTokens * dim);
  for (int64_t t = 0; t < chunk.tokens; t += kTokens) {
    TokenSums<kQueries> sums;
    for (__m512& sum : sums) sum = Bf16Pairs::zero();
    add_tile<kQueries>(asking.rows, latents.from(t), sums);
    add_tile<kQueries>(asking.rows + dim, rotated.from(t), sums);
    unroll<kQueries * kVectors>([&](auto i) {
      float* to = scratch.logits + i / kVectors * kLogitStride + t + i % kVectors * Vec::width;
      store(to, Vec{sums[i]} * broadcast(shape.scaling));
    });
  }
}

// The latents under the weights of kQueries queries from `first` on, whose logits are there.
template <int kQueries>
void weigh_latents(const Shape& shape, const Chunk& chunk, float* logits, int64_t first, const Partial& out) {
  Weights<kQueries, InBf16> weights(shape, chunk, logits, first, out);
  const auto* latents = static_cast<const Bf16*>(chunk.keys);
  weigh_pairs<kQueries>(shape, weights, latents, chunk.tokens, out.acc + first * shape.value_width);
  weights.finish();
}

// The whole chunk function where numbers are bf16 and their channels whole strips; false elsewhere.
template <class T>
inline bool latents_in_pairs(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                             const Partial& out) {
  if constexpr (!std::is_same_v<T, Bf16>) return false;
  if (!values_are_pairs(shape.value_dim) || rotated_dim(shape) % kLaneChannels || shape.key_dim > kMostAsked) return false;
  clear(shape, out);
  for (int64_t first = 0; first < shape.queries; first += kMostAsking) {
    const int64_t count = least(kMostAsking, shape.queries - first);
    const bool together = count > kMostWeighed;
    if (together) score_latents<kMostAsking>(shape, chunk, queries, first, scratch);
    for (int64_t half = 0; half < count; half += kMostWeighed) {
      for_query_blocks(least(kMostWeighed, count - half), [&](int64_t from, auto size) {
        constexpr int kQueries = least(decltype(size)::value, kMostWeighed);
        const int64_t at = first + half + from;
        if (!together) score_latents<kQueries>(shape, chunk, queries, at, scratch);
        weigh_latents<kQueries>(shape, chunk, scratch.logits + (together ? half + from : 0) * kLogitStride, at, out);
      });
    }
  }
  return true;
}

}  // namespace
}  // namespace winnow
