// Logits of a chunk of packed keys.
#pragma once

#include <type_traits>

#include "attend/contract.hpp"
#include "attend/queries.hpp"
#include "dense/scores.hpp"
#include "packed/int8_dots.hpp"
#include "packed/rows.hpp"
#include "packed/scratch.hpp"
#include "simd/element.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

#if defined(__AVX512VBMI2__) && defined(__AVX512BF16__)
#include "packed/avx512/pruned_keys.hpp"
#endif

namespace winnow {
namespace {

// logits[q][t] *= scales[t]
template <int kQueries, class T>
inline void scale_by_slot(const T* scales, int64_t tokens, float* rows) {
  for (int64_t t = 0; t < tokens; t += Vec::width) {
    const int64_t rest = tokens - t;
    const Vec scale = rest >= Vec::width ? load(scales + t) : load_first(scales + t, rest);
    unroll<kQueries>([&](auto q) {
      float* at = rows + q * kLogitStride + t;
      store(at, scale * load(at));
    });
  }
}

// Whether numbers are multiplied by the scale of their slot after all else.
inline bool scaled_by_slot(const winnow_rows& rows) { return rows.scaling == WINNOW_PER_SLOT && !rows.masks; }

// The channels that a head's keys have, from a block of queries.
template <int kQueries, class T>
inline Queries pick_channels(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first, T* picked) {
  const int64_t kept = chunk.part->keys.kept;
  const int16_t* channels = chunk.part->keys.channels + chunk.head * kept;
  for (int64_t i = 0; i < kQueries && first + i < shape.queries; ++i) {
    const T* from = static_cast<const T*>(query_at(shape, queries, first + i, sizeof(T)));
    for (int64_t d = 0; d < kept; ++d) picked[i * kept + d] = from[channels[d]];
  }
  return {picked, kept, 0};
}

// Keys that are read where they lie, of type Key.
template <int kQueries, class Key, class T>
inline void score_in_place(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                           const Scratch& scratch) {
  const winnow_rows& rows = chunk.part->keys;
  Chunk numbers = chunk;
  numbers.keys = static_cast<const Key*>(rows.data) + chunk.slot * shape.key_dim;
  numbers.values = numbers.keys;
  gather_queries<kQueries, Key, T>(shape, queries, first, scratch.query);
  score<kQueries, Key>(shape, numbers, scratch.query, scratch.edge, scratch.logits);
}

// Queries that meet the numbers of one group of slots: key = zero + scale·number in every channel, so the query takes
// the scales, and its product with the zeros is the same for all slots of the group.
template <int kQueries, class T>
inline void fold_group(const Shape& shape, const T* scales, const T* zeros, const float* query, float* folded,
                       float (&bias)[kQueries]) {
  Vec sums[kQueries];
  unroll<kQueries>([&](auto i) { sums[i] = broadcast(0.0f); });
  for (int64_t d = 0; d < shape.key_dim; d += Vec::width) {
    const int64_t rest = shape.key_dim - d;
    const Vec scale = rest >= Vec::width ? load(scales + d) : load_first(scales + d, rest);
    const Vec zero = rest >= Vec::width ? load(zeros + d) : load_first(zeros + d, rest);
    unroll<kQueries>([&](auto i) {
      const int64_t at = d * kQueries + i * Vec::width;
      const Vec q = load(query + at);
      store(folded + at, q * scale);
      sums[i] = fma(q, zero, sums[i]);
    });
  }
  unroll<kQueries>([&](auto i) { bias[i] = lane_sum(sums[i]); });
}

// logits[q][t] += bias[q] for the tokens of a tile and up to the next whole vector
template <int kQueries>
inline void add_bias(const float (&bias)[kQueries], int64_t tokens, float* logits) {
  for (int64_t t = 0; t < tokens; t += Vec::width) {
    unroll<kQueries>([&](auto q) {
      float* at = logits + q * kLogitStride + t;
      store(at, load(at) + broadcast(bias[q]));
    });
  }
}

static_assert(kTileRows == kGroup, "a tile of grouped keys has one set of scales");

// Any other keys from a token on, unpacked a tile at a time; tiles are groups of slots where these share scales.
template <int kQueries, class T>
inline void score_unpacked(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                           int64_t token, const Scratch& scratch, const PackedScratch& packed) {
  if (token == chunk.tokens) return;
  const winnow_rows& rows = chunk.part->keys;
  RowReader<T> reader(rows, *chunk.part, chunk.head, chunk.slot + token, shape.key_dim, false, packed.reader,
                      packed.row_floats);
  gather_queries<kQueries, float, T>(shape, queries, first, scratch.query);
  for (int64_t t = token; t < chunk.tokens; t += kTileRows) {
    Chunk tile = chunk;
    tile.keys = tile.values = packed.tile;
    tile.tokens = least(kTileRows, chunk.tokens - t);
    reader.unpack(tile.tokens, packed.tile);
    if (rows.scaling != WINNOW_GROUPED) {
      score<kQueries, float>(shape, tile, scratch.query, scratch.edge, scratch.logits + t);
      continue;
    }
    const int64_t group = (chunk.slot + t) / kGroup * shape.key_dim;
    float bias[kQueries];
    fold_group<kQueries>(shape, static_cast<const T*>(rows.scales) + group, static_cast<const T*>(rows.zeros) + group,
                         scratch.query, packed.queries, bias);
    score<kQueries, float>(shape, tile, packed.queries, scratch.edge, scratch.logits + t);
    add_bias<kQueries>(bias, tile.tokens, scratch.logits + t);
  }
}

// Integers by integer products, where the machine and the model allow it; false where they do not.
template <int kQueries, class T>
inline bool score_integers([[maybe_unused]] const Shape& shape, [[maybe_unused]] const Chunk& chunk,
                           [[maybe_unused]] const Queries& queries, [[maybe_unused]] int64_t first,
                           [[maybe_unused]] const Scratch& scratch, [[maybe_unused]] const PackedScratch& packed) {
  if constexpr (kIntegerDots && !std::is_same_v<T, float>) {
    const winnow_rows& rows = chunk.part->keys;
    if (!whole_chunks(rows, shape.key_dim) || !sums_fit(rows, shape.key_dim)) return false;
    const uint8_t* data = static_cast<const uint8_t*>(rows.data) + chunk.slot * rows.row_bytes;
    const char* last = reinterpret_cast<const char*>(data) + chunk.tokens * rows.row_bytes - 1;
    int8_t* words = reinterpret_cast<int8_t*>(packed.tile);
    float bias[kQueries] = {};
    gather_queries<kQueries, float, T>(shape, queries, first, scratch.query);
    if (rows.scaling == WINNOW_PER_SLOT) {
      score_words<kQueries, true>(rows.bits, scratch.query, shape.key_dim, bias, data, chunk.tokens, last, words,
                                  scratch.edge, scratch.logits);
      return true;
    }
    for (int64_t t = 0; t < chunk.tokens; t += kGroup) {
      const int64_t group = (chunk.slot + t) / kGroup * shape.key_dim;
      fold_group<kQueries>(shape, static_cast<const T*>(rows.scales) + group,
                           static_cast<const T*>(rows.zeros) + group, scratch.query, packed.queries, bias);
      score_words<kQueries, false>(rows.bits, packed.queries, shape.key_dim, bias, data + t * rows.row_bytes,
                                   least(kGroup, chunk.tokens - t), last, words, scratch.edge,
                                   scratch.logits + t);
    }
    return true;
  } else {
    return false;
  }
}

// Keys with channels of their own by products of pairs, where the machine and the model allow it; returns how many
// tokens these were, from the first on.
template <int kQueries, class T>
inline int64_t score_masked_rows([[maybe_unused]] const Shape& shape, [[maybe_unused]] const Chunk& chunk,
                                   [[maybe_unused]] const Queries& queries, [[maybe_unused]] int64_t first,
                                   [[maybe_unused]] const Scratch& scratch,
                                   [[maybe_unused]] const PackedScratch& packed) {
#if defined(__AVX512VBMI2__) && defined(__AVX512BF16__)
  if constexpr (!std::is_same_v<T, float>) {
    return score_pruned<kQueries, T>(shape, chunk, queries, first, packed, scratch.logits);
  }
#endif
  return 0;
}

// scratch.logits[q][t] for the queries [first, first + kQueries) and all tokens of the chunk.
template <int kQueries, class T>
inline void score_packed(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                         const Scratch& scratch, const PackedScratch& packed) {
  const winnow_rows& rows = chunk.part->keys;
  Shape kept = shape;
  Queries from = queries;
  if (rows.channels) {
    from = pick_channels<kQueries>(shape, chunk, queries, first, reinterpret_cast<T*>(packed.queries));
    kept.key_dim = rows.kept;
    kept.query_width = round_up(rows.kept, 16);
    kept.queries = least(kQueries, shape.queries - first);
    kept.group = kQueries;
    first = 0;
  }
  if (score_integers<kQueries, T>(kept, chunk, from, first, scratch, packed)) {
    // Done.
  } else if (!rows.masks && rows.bits == 16) {
    score_in_place<kQueries, T, T>(kept, chunk, from, first, scratch);
  } else if (!rows.masks && rows.bits == 8 && rows.scaling == WINNOW_PER_SLOT) {
    score_in_place<kQueries, Int8, T>(kept, chunk, from, first, scratch);
  } else {
    const int64_t scored = score_masked_rows<kQueries, T>(kept, chunk, from, first, scratch, packed);
    score_unpacked<kQueries, T>(kept, chunk, from, first, scored, scratch, packed);
  }
  if (scaled_by_slot(rows)) {
    scale_by_slot<kQueries>(static_cast<const T*>(rows.scales) + chunk.slot, chunk.tokens, scratch.logits);
  }
}

}  // namespace
}  // namespace winnow
