// Queries as they meet packed keys: without the channels that these do not have, and with their scales.
#pragma once

#include <cstdint>

#include "attend/contract.hpp"
#include "attend/queries.hpp"
#include "packed/format.hpp"
#include "simd/hadamard.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Queries of which a block is left to be asked, from the first on.
struct Asked {
  Shape shape;
  Queries queries;
};

// A list of no channels may have no address.
inline bool lacks_channels(const winnow_rows& keys) { return keys.channels || keys.kept == 0; }

// The channels that a head's keys have, from a block of queries.
template <int kQueries, class T>
inline Asked pick_channels(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first, T* picked) {
  const int64_t kept = chunk.part->keys.kept;
  const int16_t* channels = chunk.part->keys.channels + chunk.head * kept;
  for (int64_t i = 0; i < kQueries && first + i < shape.queries; ++i) {
    const T* from = static_cast<const T*>(query_at(shape, queries, first + i, sizeof(T)));
    for (int64_t d = 0; d < kept; ++d) picked[i * kept + d] = from[channels[d]];
  }
  static constexpr int64_t kOneRow[] = {0};
  Shape asked = shape;
  asked.key_dim = kept;
  asked.query_width = round_up(kept, 16);
  asked.queries = least(kQueries, shape.queries - first);
  asked.group_size = kQueries;
  return {asked, {picked, kept, 0, 0, kOneRow, 1}};
}

// The channels of a block of queries times factors of a head's channels.
template <int kQueries, class T>
inline void scale_channels(const T* factors, int64_t dim, float* block) {
  for (int64_t d = 0; d < dim; d += Vec::width) {
    const Vec factor = load_up_to(factors + d, dim - d);
    unroll<kQueries>([&](auto i) {
      float* at = block + d * kQueries + i * Vec::width;
      store(at, factor * load(at));
    });
  }
}

// gather_queries for keys that are integers, in the coordinates of these.
template <int kQueries, class Key, class T>
inline void gather_for(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first, float* block) {
  const winnow_rows& rows = chunk.part->keys;
  gather_queries<kQueries, Key, T>(shape, queries, first, block);
  if (rows.spreads) {
    scale_channels<kQueries>(static_cast<const T*>(rows.spreads) + chunk.head * shape.key_dim, shape.key_dim, block);
  }
  if (!rows.rotated) return;
  for (int64_t i = 0; i < kQueries; ++i) transform_row(block + i * Vec::width, shape.key_dim, kQueries * Vec::width);
}

// What every logit of a head lacks because its mean was subtracted from its keys.
template <int kQueries, class T>
inline void score_mean(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                       float (&bias)[kQueries]) {
  const T* mean = static_cast<const T*>(chunk.part->keys.means) + chunk.head * shape.key_dim;
  for (int64_t i = 0; i < kQueries; ++i) {
    Vec sum = broadcast(0.0f);
    if (first + i < shape.queries) {
      const T* query = static_cast<const T*>(query_at(shape, queries, first + i, sizeof(T)));
      for (int64_t d = 0; d < shape.key_dim; d += Vec::width) {
        sum = fma(load_up_to(query + d, shape.key_dim - d), load_up_to(mean + d, shape.key_dim - d), sum);
      }
    }
    bias[i] = shape.scaling * lane_sum(sum);
  }
}

// Queries that meet the numbers of a slot and of all others of its scale group: key = zero + scale·number in every
// channel, so the query takes the scales, and its product with the zeros is the same for all of them.
template <int kQueries, class T>
inline void fold_scales(const Shape& shape, const winnow_rows& rows, int64_t slot, const float* query, float* folded,
                        float (&bias)[kQueries]) {
  const int64_t first = slot / kScaleGroup * shape.key_dim;
  const T *scales = static_cast<const T*>(rows.scales) + first, *zeros = static_cast<const T*>(rows.zeros) + first;
  Vec sums[Vec::width];
  unroll<Vec::width>([&](auto i) { sums[i] = broadcast(0.0f); });
  for (int64_t d = 0; d < shape.key_dim; d += Vec::width) {
    const Vec scale = load_up_to(scales + d, shape.key_dim - d), zero = load_up_to(zeros + d, shape.key_dim - d);
    unroll<kQueries>([&](auto i) {
      const int64_t at = d * kQueries + i * Vec::width;
      const Vec q = load(query + at);
      store(folded + at, q * scale);
      sums[i] = fma(q, zero, sums[i]);
    });
  }
  alignas(64) float all[Vec::width];
  store(all, row_sums(sums));
  for (int i = 0; i < kQueries; ++i) bias[i] = all[i];
}

}  // namespace
}  // namespace winnow
