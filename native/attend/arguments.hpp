// The arguments of a call held against each other, before anything points into memory. Callers check blocks completely
// when they are made; what is cheap is checked again here, so that a mistake above is an error and not a wild read.
#pragma once

#include <algorithm>
#include <cstdint>

#include "packed/format.hpp"
#include "runtime/kernels.hpp"
#include "sizes.hpp"
#include "winnow_native.h"

namespace winnow {
namespace {

inline bool ring_fits(const winnow_ring& ring, const winnow_decode_args& args) {
  if (ring.window < 1) return false;
  for (int64_t row = 0; row < args.rows; ++row) {
    if (ring.seen[row] < 0 || std::min(ring.seen[row], ring.window) > ring.capacity) return false;
    if (args.tail_lengths[row] != args.queries) return false;
  }
  return true;
}

inline bool lengths_fit(const winnow_decode_args& args) {
  if (args.ring && !ring_fits(*args.ring, args)) return false;
  return std::all_of(args.tail_lengths, args.tail_lengths + args.rows,
                     [&](int64_t length) { return length >= 0 && length <= args.tail_capacity; });
}

// Sizes of one side of a part: `dim` channels of `bytes` each.
struct SideSizes {
  int64_t slots, heads, dim, bytes;
  bool keys;
};

inline bool bits_fit(const winnow_rows& rows) {
  switch (rows.bits) {
    case 16: return rows.scaling == WINNOW_UNSCALED;
    case 8:
    case 6:
    case 4:
    case 3:
    case 2:
      if (rows.scaling == WINNOW_PER_SLOT) return rows.scales;
      if (rows.scaling == WINNOW_CHANNEL_GROUPS) {
        return (rows.scale_group == 32 || rows.scale_group == 64) && (rows.scales || rows.kept == 0);
      }
      // Lists of nothing may have no address.
      return rows.scaling == WINNOW_GROUPED && ((rows.scales && rows.zeros) || rows.kept == 0);
    default: return false;
  }
}

// Slots from `bytes` bytes on, `row` bytes for each, are all there.
inline bool holds(int64_t bytes, int64_t row, int64_t slots) { return row >= 0 && (row == 0 || bytes / row >= slots); }

inline bool channels_fit(const winnow_rows& rows, const SideSizes& sizes) {
  if (rows.kept < 0 || rows.kept > sizes.dim) return false;
  if (!rows.channels) return rows.kept == sizes.dim || (rows.kept == 0 && sizes.keys);
  const int16_t *first = rows.channels, *last = first + sizes.heads * rows.kept;
  return sizes.keys && std::all_of(first, last, [&](int16_t channel) { return channel >= 0 && channel < sizes.dim; });
}

inline bool masked_fit(const winnow_rows& rows, const SideSizes& sizes) {
  if (rows.channels || rows.kept != sizes.dim || rows.scaling > WINNOW_PER_SLOT) return false;
  if (rows.recovery < WINNOW_DEGENERATE || rows.recovery > WINNOW_CONSTANT) return false;
  if (draws_sizes(rows.recovery) && !rows.draws) return false;
  const int32_t statistics = statistics_of(rows.recovery);
  if (statistics && (!rows.stats || rows.stats_width < statistics)) return false;
  if (rows.starts) return true;  // Where they lead to is looked at by who follows them.
  return holds(rows.data_bytes, rows.row_bytes, sizes.slots) &&
         (!rows.signs || holds(rows.signs_bytes, rows.sign_row_bytes, sizes.slots));
}

// Rows in other coordinates are integers of all channels.
inline bool coordinates_fit(const winnow_rows& rows, const SideSizes& sizes) {
  const bool of_heads = rows.means || rows.spreads;
  if (!rows.rotated && !of_heads) return true;
  return rows.bits != 16 && !rows.masks && !rows.channels && rows.kept == sizes.dim && (sizes.keys || !of_heads);
}

inline bool rows_fit(const winnow_rows& rows, const SideSizes& sizes) {
  if (!bits_fit(rows) || !coordinates_fit(rows, sizes)) return false;
  if (rows.masks) return masked_fit(rows, sizes);
  const bool whole_groups = rows.scaling != WINNOW_GROUPED || !sizes.keys || sizes.slots % kScaleGroup == 0;
  return whole_groups && !rows.starts && channels_fit(rows, sizes) &&
         rows.row_bytes == bytes_of_row(rows, rows.kept, sizes.bytes) &&
         holds(rows.data_bytes, rows.row_bytes, sizes.slots);
}

inline bool part_fits(const winnow_part& part, const winnow_decode_args& args) {
  for (int64_t head = 0; head < args.heads; ++head) {
    if (part.starts[head] < 0 || part.starts[head] > part.stops[head] || part.stops[head] > part.slots) return false;
  }
  const int64_t bytes = kElementBytes[args.dtype];
  if (!part.packed) {
    return holds(part.keys.data_bytes, args.key_dim * bytes, part.slots) &&
           holds(part.values.data_bytes, args.value_dim * bytes, part.slots);
  }
  return rows_fit(part.keys, {part.slots, args.heads, args.key_dim, bytes, true}) &&
         rows_fit(part.values, {part.slots, args.heads, args.value_dim, bytes, false});
}

// Latents are of one head, and all of their channels are there.
inline bool latents_fit(const winnow_decode_args& args) {
  const winnow_latent& latent = *args.latent;
  const bool has_weight = latent.weight && (latent.bits == 16 || (latent.bits == 8 && latent.scales));
  if (args.heads != 1 || args.ring || !has_weight || latent.plain_dim < 1 || latent.output_dim < 1) return false;
  const auto lacks_some = [](const winnow_rows& rows) { return rows.masks || rows.channels || rows.kept == 0; };
  return std::none_of(args.parts + args.part_bounds[0], args.parts + args.part_bounds[args.rows], [&](const winnow_part& part) {
    return part.packed && (lacks_some(part.keys) || lacks_some(part.values));
  });
}

inline bool parts_fit(const winnow_decode_args& args) {
  if (args.dtype < WINNOW_F32 || args.dtype > WINNOW_F16 || args.part_bounds[0] < 0) return false;
  if (args.heads < 1 || args.group_size < 1 || args.key_dim < 1 || args.value_dim < 1) return false;
  for (int64_t row = 0; row < args.rows; ++row) {
    if (args.part_bounds[row] > args.part_bounds[row + 1]) return false;
  }
  if (args.latent && !latents_fit(args)) return false;
  return std::all_of(args.parts + args.part_bounds[0], args.parts + args.part_bounds[args.rows],
                     [&](const winnow_part& part) { return part_fits(part, args); });
}

}  // namespace
}  // namespace winnow
