// Sums of a chunk of packed values under weights.
#pragma once

#include <cstring>
#include <type_traits>

#include "attend/contract.hpp"
#include "attend/weights.hpp"
#include "dense/weighted_sum.hpp"
#include "packed/byte_rows.hpp"
#include "packed/dots.hpp"
#include "packed/rows.hpp"
#include "packed/scratch.hpp"
#include "packed/slot_scales.hpp"
#include "simd/element.hpp"
#include "simd/hadamard.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Sums in the order of channels -> in that of load_pair for T.
template <int kQueries, class T>
inline void order_sums(const Shape& shape, float* acc) {
  if constexpr (std::is_same_v<T, Bf16>) {
    for (int64_t q = 0; q < kQueries; ++q) {
      float* row = acc + q * shape.value_width;
      for (int64_t d = 0; d + 2 * Vec::width <= shape.value_dim; d += 2 * Vec::width) {
        Vec a = load(row + d), b = load(row + d + Vec::width);
        deal_lanes(a, b);
        store(row + d, a);
        store(row + d + Vec::width, b);
      }
    }
  }
}

// The first of a chunk's values, of type Value.
template <class Value>
inline const Value* values_at(const Shape& shape, const Chunk& chunk) {
  return static_cast<const Value*>(chunk.part->values.data) + chunk.slot * shape.value_dim;
}

// Values that are read where they lie.
template <int kQueries, class Value>
inline void weigh_in_place(const Shape& shape, const Chunk& chunk, Weights<kQueries>& weights, float* acc) {
  weigh_tokens<kQueries>(shape, weights, values_at<Value>(shape, chunk), chunk.tokens, acc);
}

// Values that `reader` unpacks a tile at a time.
template <int kQueries, class Reader>
inline void weigh_tiles(const Shape& shape, const Chunk& chunk, Weights<kQueries>& weights, const PackedScratch& packed,
                        Reader reader, float* acc) {
  auto* tile = reinterpret_cast<typename Reader::Number*>(packed.tile);
  for (int64_t t = 0; t < chunk.tokens; t += kTileRows) {
    const int64_t count = least(kTileRows, chunk.tokens - t);
    reader.unpack(count, tile);
    weigh<kQueries>(shape, weights.take(t, count), tile, count, NothingAhead{}, acc);
  }
}

// Any other values.
template <int kQueries, class T>
inline void weigh_unpacked(const Shape& shape, const Chunk& chunk, Weights<kQueries>& weights,
                           const PackedScratch& packed, float* acc) {
  const winnow_rows& rows = chunk.part->values;
  const auto weigh_by = [&](const auto& reader) { weigh_tiles<kQueries>(shape, chunk, weights, packed, reader, acc); };
  // Scales of groups are many to a row: a value meets its own where it is unpacked.
  if (are_bytes(rows, shape.value_dim) && rows.scaling == WINNOW_PER_SLOT) {
    return weigh_by(ByteReader(rows, chunk.slot, shape.value_dim));
  }
  weigh_by(RowReader<T>(rows, *chunk.part, chunk.head, chunk.slot, shape.value_dim, true, packed.reader, packed.row_floats));
}

// Sums of a chunk's values as they lie -> in the coordinates and the order of Partial.
template <int kQueries, class T>
inline void finish_sums(const Shape& shape, const Chunk& chunk, float* acc) {
  if (chunk.part->values.rotated) {
    for (int64_t q = 0; q < kQueries; ++q) transform_row(acc + q * shape.value_width, shape.value_dim, Vec::width);
  }
  order_sums<kQueries, T>(shape, acc);
}

// Adds the chunk's values under the weights of kQueries queries to acc, in the order of Partial.
template <int kQueries, class T>
inline void weigh_packed(const Shape& shape, const Chunk& chunk, Weights<kQueries>& weights, const PackedScratch& packed,
                         float* acc) {
  const winnow_rows& rows = chunk.part->values;
  if (const T* scales = slot_scales<T>(rows, chunk)) weights.scale_by(scales);
  if (are_numbers(rows)) return weigh_in_place<kQueries, T>(shape, chunk, weights, acc);
  if (weigh_int8<kQueries, T>(shape, chunk, weights, packed, acc)) {
    // Only their order is left to do.
  } else if (!rows.masks && rows.bits == 8 && rows.scaling == WINNOW_PER_SLOT) {
    weigh_in_place<kQueries, Int8>(shape, chunk, weights, acc);
  } else {
    weigh_unpacked<kQueries, T>(shape, chunk, weights, packed, acc);
  }
  finish_sums<kQueries, T>(shape, chunk, acc);
}

}  // namespace
}  // namespace winnow
