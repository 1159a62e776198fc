// Which chunks are products in tiles, and of what.
#pragma once

#include <type_traits>

#include "attend/contract.hpp"
#include "dense/amx/chunk.hpp"
#include "matrix/amx/chunk.hpp"
#include "matrix/amx/held_rows.hpp"
#include "packed/amx/chunk.hpp"
#include "simd/element.hpp"

namespace winnow {
namespace {

// From this many queries on, a block of tokens is read once for all of them: at once where bf16 holds numbers as they lie,
// integers later. What has to be split into two bf16 is worth it later still, and more so where blocks of queries meet it
// in tiles.
constexpr int64_t kManyMeetNumbers = kMostTileQueries + 1, kManyMeetShortIntegers = 16, kManyMeetIntegers = 28,
                  kManyMeetSplit = 28, kManyMeetSplitInTiles = 48;

template <class T>
int64_t fewest_of_many(const Shape& shape, const Chunk& chunk) {
  if (!chunk.part) {
    return are_held<T>(shape.key_dim) && are_held<T>(shape.value_dim) ? kManyMeetNumbers : kManyMeetSplit;
  }
  const winnow_rows &keys = chunk.part->keys, &values = chunk.part->values;
  if (!are_held<T>(keys) || !are_held<T>(values)) {
    return packed_fits_tiles<T>(shape, chunk) ? kManyMeetSplitInTiles : kManyMeetSplit;
  }
  if (keys.bits == 16 && values.bits == 16) return kManyMeetNumbers;
  return shape.key_dim <= kShortRow ? kManyMeetShortIntegers : kManyMeetIntegers;
}

// Many queries that all see the chunk. A step of decoding has few, and asks no further.
template <class T>
bool many_serve(const Shape& shape, const Chunk& chunk) {
  return shape.queries > kMostTileQueries && all_see(shape, chunk) && shape.queries >= fewest_of_many<T>(shape, chunk);
}

template <class T>
bool serves_in_tiles(const Shape& shape, const Chunk& chunk) {
  if (std::is_same_v<T, Bf16> && tiles_of_bf16(shape, chunk)) return true;
  return packed_fits_tiles<T>(shape, chunk) || many_serve<T>(shape, chunk);
}

template <class T>
void dense_in_tiles(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                    const Partial& out) {
  if constexpr (std::is_same_v<T, Bf16>) {
    if (!many_serve<T>(shape, chunk)) return bf16_chunk(shape, chunk, queries, scratch, out);
  }
  tiles_dense_chunk<T>(shape, chunk, queries, scratch, out);
}

template <class T>
void packed_in_tiles(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                     const Partial& out) {
  if (!many_serve<T>(shape, chunk)) return few_queries_in_tiles<T>(shape, chunk, queries, scratch, out);
  tiles_packed_chunk<T>(shape, chunk, queries, scratch, out);
}

}  // namespace
}  // namespace winnow
