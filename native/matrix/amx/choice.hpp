// Which chunks are products in tiles, and of what.
#pragma once

#include <type_traits>

#include "attend/contract.hpp"
#include "dense/amx/chunk.hpp"
#include "matrix/amx/chunk.hpp"
#include "matrix/chunk.hpp"
#include "packed/amx/chunk.hpp"
#include "simd/element.hpp"

namespace winnow {
namespace {

// Many queries that all see the chunk.
template <class T>
bool many_serve(const Shape& shape, const Chunk& chunk) {
  if constexpr (std::is_same_v<T, Bf16>) return tiles_serve(shape, chunk);
  return matrix_serves<T>(shape, chunk);
}

template <class T>
bool serves_in_tiles(const Shape& shape, const Chunk& chunk) {
  if (std::is_same_v<T, Bf16> && tiles_of_bf16(shape, chunk)) return true;
  return packed_fits_tiles<T>(shape, chunk) || many_serve<T>(shape, chunk);
}

inline void dense_in_tiles(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                           const Partial& out) {
  if (tiles_serve(shape, chunk)) return tiles_dense_chunk(shape, chunk, queries, scratch, out);
  bf16_chunk(shape, chunk, queries, scratch, out);
}

template <class T>
void packed_in_tiles(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                     const Partial& out) {
  if (!many_serve<T>(shape, chunk)) return few_queries_in_tiles<T>(shape, chunk, queries, scratch, out);
  if constexpr (std::is_same_v<T, Bf16>) {
    tiles_packed_chunk(shape, chunk, queries, scratch, out);
  } else {
    matrix_packed_chunk<T>(shape, chunk, queries, scratch, out);
  }
}

}  // namespace
}  // namespace winnow
