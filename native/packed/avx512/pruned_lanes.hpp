// Logits of keys that keep channels of their own (see pruned_keys.hpp for what is summed up), expanded a few at a time: kept
// entries and signs then meet the queries as dense rows and integers do. A lane is a token, so that nothing is summed over
// lanes.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "attend/contract.hpp"
#include "attend/queries.hpp"
#include "dense/avx512/pair_keys.hpp"
#include "packed/avx512/expanded_keys.hpp"
#include "packed/avx512/int8.hpp"
#include "packed/avx512/int8_keys.hpp"
#include "packed/avx512/looked_up_keys.hpp"
#include "packed/fill.hpp"
#include "packed/format.hpp"
#include "packed/masked_rows.hpp"
#include "packed/queries.hpp"
#include "packed/scratch.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/scalar.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

static_assert(kExpandedKeys == kTileTokens, "expanded keys are a tile");

// sums[q][t] of a tile of rows of bytes.
template <int kQueries>
inline void score_bytes(const Int16Queries<kQueries>& queries, const uint8_t* rows, int64_t dim, float* sums) {
  constexpr std::array<float, kQueries> kNone{};
  const Lift<Plane<8>> lift(true);
  for_even_parts<kQueries, kMostInBlock<kQueries>>([&](auto first, auto size) {
    const Int16Block<size, QueryInt16<kQueries>> block(queries, first, dim, nullptr, kNone.data());
    score_int8_tile<size, Plane<8>>(block, lift, rows, dim, dim, NothingAhead{}, sums + first * kLogitStride);
  });
}

// Queries as they are, for kept entries in bf16.
template <int kQueries>
struct MetByNumbers {
  PairQueries<kQueries> pairs;
  float scaling;

  MetByNumbers(const Shape& shape, const Queries& queries, int64_t first, const float*, int8_t*)
      : pairs(shape, queries, first), scaling(shape.scaling) {}
};

// Kept entries in bf16, written out.
template <int kQueries>
struct NumbersInLanes : MetByNumbers<kQueries> {
  using Rows = ExpandedNumbers;
  using MetByNumbers<kQueries>::MetByNumbers;

  void score(const uint8_t* rows, int64_t dim, float* sums) const {
    using Tile = TokenLanes<kQueries>;
    for (int64_t t = 0; t < kExpandedKeys; t += Tile::kTokens) {
      Tile::score(this->pairs, reinterpret_cast<const Bf16*>(rows) + t * dim, dim, this->scaling, NothingAhead{}, sums + t);
    }
  }
};

// The same, where they look up the channels of queries.
template <int kQueries>
struct NumbersLookUp : MetByNumbers<kQueries> {
  using Rows = NumbersWithChannels;
  using MetByNumbers<kQueries>::MetByNumbers;

  void score(const uint8_t* rows, int64_t dim, float* sums) const {
    for (int64_t t = 0; t < kExpandedKeys; t += Vec::width) {
      __m512 found[kQueries];
      look_up_rows<kQueries>(this->pairs, rows + t * dim * Rows::kBytes, dim, found);
      unroll<kQueries>([&](auto q) { store(sums + q * kLogitStride + t, Vec{found[q]} * broadcast(this->scaling)); });
    }
  }
};

// Kept entries in 8 bits, and queries in int16.
template <int kQueries>
struct IntegersInLanes {
  using Rows = ExpandedIntegers;
  Int16Queries<kQueries> int16;

  IntegersInLanes(const Shape& shape, const Queries&, int64_t, const float* block, int8_t* memory)
      : int16(quantize_queries<kQueries>(block, shape.key_dim, memory)) {}

  void score(const uint8_t* rows, int64_t dim, float* sums) const { score_bytes(int16, rows, dim, sums); }
};

// logits[q][t] += sums of kept entries, which lie a tile behind, where logits are those of signs before.
template <int kQueries, class T>
inline void add_kept(const winnow_rows& rows, int64_t slot, int64_t count, float* logits) {
  const T *scales = static_cast<const T*>(rows.scales), *stats = static_cast<const T*>(rows.stats);
  const bool constant = rows.recovery == WINNOW_CONSTANT;
  for (int64_t t = 0; t < count; t += Vec::width) {
    const Vec statistic = constant ? broadcast(rows.fill) : load_up_to(stats + slot + t, count - t);
    const Vec scale = scales ? load_up_to(scales + slot + t, count - t) : broadcast(1.0f);
    unroll<kQueries>([&](auto q) {
      float* at = logits + q * kLogitStride + t;
      store(at, fma(load(at), statistic, load(at + kExpandedKeys) * scale));
    });
  }
}

// logits[q][t] for all tokens of a chunk; writes up to two tiles past the last token. `memory` is for two blocks of queries.
template <int kQueries, class T, class Kept>
inline void score_expanded(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first, float* block,
                           int8_t* memory, float* logits) {
  const winnow_rows &rows = chunk.part->keys, &values = chunk.part->values;
  const int64_t dim = shape.key_dim;
  gather_queries<kQueries, float, T>(shape, queries, first, block);
  const Kept kept(shape, queries, first, block, memory);
  if (rows.inverse_norms) scale_channels<kQueries>(rows.inverse_norms + chunk.head * dim, dim, block);
  const auto over_norms = quantize_queries<kQueries>(block, dim, memory + 2 * kQueries * dim);
  MaskedRows reader(rows, chunk.part->slots, chunk.slot, dim, sizeof(T));
  using Rows = typename Kept::Rows;
  ExpandedKeys<Rows> keys;
  // Few bytes and many products here, many bytes and few products with the values: they are asked for meanwhile.
  const char* later = static_cast<const char*>(values.data) + chunk.slot * values.row_bytes;
  for (int64_t t = 0; t < chunk.tokens; t += kExpandedKeys, later += kExpandedKeys * values.row_bytes) {
    const int64_t count = least(kExpandedKeys, chunk.tokens - t);
    prefetch_for_later(later, count * values.row_bytes);
    for_blocks(dim, [&](auto blocks) { expand_keys<Rows, decltype(blocks)::value>(rows, count, reader, keys); });
    score_bytes(over_norms, keys.signs, dim, logits + t);
    kept.score(keys.kept, dim, logits + t + kExpandedKeys);
    add_kept<kQueries, T>(rows, chunk.slot + t, count, logits + t);
  }
}

// True where lookups are cheaper than products, of keys that all keep as few entries as can be looked up.
constexpr bool kLooksUp = kZenGeneration == 4;
inline bool can_look_up(const winnow_rows& rows) {
  return !rows.starts && rows.row_bytes <= kMostLookedUp * NumbersWithChannels::kBytes;
}

// The most queries that meet kept entries in bf16 without keys being written out (see pruned_keys.hpp).
constexpr int kMostUnwritten = kZenGeneration == 4 ? 2 : 1;

// The same where keys have whole blocks of channels, each row has one statistic, and kept entries are in 8 bits or, for more
// queries than a few, in bf16; false elsewhere.
template <int kQueries, class T>
inline bool score_in_lanes(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                           const Scratch& scratch, const PackedScratch& packed) {
  const winnow_rows& rows = chunk.part->keys;
  const int64_t dim = shape.key_dim;
  if (!rows.masks || draws_sizes(rows.recovery) || rows.stats_width != statistics_of(rows.recovery)) return false;
  if (dim % kRowNumbers || dim > kMostExpandedDim) return false;
  int8_t* memory = reinterpret_cast<int8_t*>(packed.queries);
  if constexpr (!std::is_same_v<T, float>) {
    if (rows.bits == 8) {
      score_expanded<kQueries, T, IntegersInLanes<kQueries>>(shape, chunk, queries, first, scratch.query, memory,
                                                             scratch.logits);
      return true;
    }
  }
  if constexpr (std::is_same_v<T, Bf16> && (kQueries > kMostUnwritten)) {
    if (rows.bits != 16) return false;
    if constexpr (kLooksUp) {
      if (can_look_up(rows)) {
        score_expanded<kQueries, T, NumbersLookUp<kQueries>>(shape, chunk, queries, first, scratch.query, memory,
                                                             scratch.logits);
        return true;
      }
    }
    score_expanded<kQueries, T, NumbersInLanes<kQueries>>(shape, chunk, queries, first, scratch.query, memory,
                                                          scratch.logits);
    return true;
  }
  return false;
}

}  // namespace
}  // namespace winnow
