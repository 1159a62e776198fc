// Which packed rows fill tiles, and what they are then made of.
#pragma once

#include <type_traits>

#include "attend/contract.hpp"
#include "matrix/amx/channel_sums.hpp"
#include "matrix/amx/sizes.hpp"
#include "matrix/amx/token_sums.hpp"
#include "packed/amx/numbers.hpp"
#include "packed/avx512/int8_keys.hpp"
#include "packed/format.hpp"
#include "simd/element.hpp"

namespace winnow {
namespace {

enum class TileRows {
  kNone,
  kIntegers,        // with a scale for each slot
  kGroups,          // with scales of groups: of a slot's channels, or, of keys, of a channel's slots
  kNumbers,         // the model's own, in bf16
  kPrunedNumbers,   // of which every row keeps channels of its own
  kPrunedIntegers,  // the same in 8 bits
};

// True where rows are in the coordinates of queries, as they are.
inline bool is_plain(const winnow_rows& rows) { return !rows.rotated && !rows.means && !rows.spreads; }

template <class T>
inline TileRows pruned_in_tiles(const winnow_rows& rows, int64_t dim) {
  const bool fits = std::is_same_v<T, Bf16> && dim % kRowNumbers == 0 && dim <= kMostTileDim;
  const bool one_statistic = rows.stats_width == statistics_of(rows.recovery) && !draws_sizes(rows.recovery);
  if (!fits || !one_statistic || !is_plain(rows)) return TileRows::kNone;
  if (rows.bits == 16) return TileRows::kPrunedNumbers;
  return rows.bits == 8 ? TileRows::kPrunedIntegers : TileRows::kNone;
}

// Rows of `dim` channels, all there.
template <class T>
inline TileRows whole_in_tiles(const winnow_rows& rows, int64_t dim, int64_t multiple_of_numbers) {
  if (dim == 0 || dim > kMostTileDim) return TileRows::kNone;
  if (rows.bits == 16) {
    const bool fits = std::is_same_v<T, Bf16> && dim % multiple_of_numbers == 0 && is_plain(rows);
    return fits ? TileRows::kNumbers : TileRows::kNone;
  }
  if (dim % kRowNumbers) return TileRows::kNone;
  if (rows.scaling == WINNOW_PER_SLOT) return TileRows::kIntegers;
  return rows.bits < 8 ? TileRows::kGroups : TileRows::kNone;
}

template <class T>
inline TileRows keys_in_tiles(const Shape& shape, const winnow_rows& rows) {
  if (rows.masks) return pruned_in_tiles<T>(rows, shape.key_dim);
  const TileRows kind = whole_in_tiles<T>(rows, rows.kept, kTileChannels);
  if (kind == TileRows::kNumbers) return kind;
  const bool fits = !rows.channels && (kind != TileRows::kIntegers || sums_fit(rows, rows.kept));
  return fits ? kind : TileRows::kNone;
}

template <class T>
inline TileRows values_in_tiles(const Shape& shape, const winnow_rows& rows) {
  if (rows.masks || rows.channels || rows.kept != shape.value_dim) return TileRows::kNone;
  return whole_in_tiles<T>(rows, shape.value_dim, kSummedChannels);
}

}  // namespace
}  // namespace winnow
