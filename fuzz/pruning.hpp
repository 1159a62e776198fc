// Problems of pruning, put together from bytes, and room for what is found.
#pragma once

#include <algorithm>
#include <cstdint>

#include "bytes.hpp"
#include "winnow_native.h"

// any: numbers are any bits at all.
inline winnow_prune_args pruning_of(Bytes& from, Arrays& arrays, bool any) {
  winnow_prune_args args{};
  args.dtype = static_cast<int32_t>(from.below(3));
  args.dim = from.coin() ? from.among(1, 140) : 16 * from.among(1, 16);
  args.slots = from.below(300);
  args.row_stride = args.dim + (from.coin() ? from.below(9) : 0);
  args.most = from.among(1, args.dim);
  args.threads = static_cast<int32_t>(from.among(1, 3));
  args.statistic = static_cast<int32_t>(from.below(WINNOW_PRUNED_MOMENTS + 1));
  args.squared = from.coin();
  args.share = from.coin() ? -1.0 : static_cast<double>(from.below(101)) / 100;
  const int64_t numbers = args.slots ? (args.slots - 1) * args.row_stride + args.dim : 0;
  args.rows = arrays.numbers(args.dtype, numbers, any);
  if (args.share >= 0 && from.coin()) {
    args.level_count = from.among(1, 6);
    int64_t* levels = arrays.zeros<int64_t>(args.level_count);
    for (int64_t i = 0; i < args.level_count; ++i) levels[i] = from.among(1, args.most);
    levels[args.level_count - 1] = args.most;
    std::sort(levels, levels + args.level_count);
    args.levels = levels;
    int64_t* bounds = arrays.zeros<int64_t>(args.level_count);
    for (int64_t i = 0; i < args.level_count; ++i) bounds[i] = from.among(1, args.dim);
    std::sort(bounds, bounds + args.level_count);
    args.bounds = bounds;
  } else if (args.share >= 0) {
    args.most = args.dim;
  }
  if (from.coin()) {
    const int64_t heads = from.among(1, 4);
    int64_t* head = arrays.zeros<int64_t>(args.slots);
    for (int64_t i = 0; i < args.slots; ++i) head[i] = i % heads;
    args.head = head;
    args.inverse_norms = static_cast<float*>(arrays.numbers(WINNOW_F32, heads * args.dim, any));
  }
  return args;
}

// Room for masks, counts and statistics.
inline void make_room(winnow_prune_args& args, Arrays& arrays) {
  args.masks = arrays.zeros<uint8_t>(args.slots * ((args.dim + 7) / 8));
  args.counts = arrays.zeros<int64_t>(args.slots);
  const int64_t statistics = args.statistic == WINNOW_PRUNED_MOMENTS ? 3 : args.statistic == WINNOW_MOMENTS ? 2 : 1;
  args.stats = arrays.zeros<float>(args.slots * statistics);
}

// Room for kept numbers of the rows, and for signs if asked for, once counts are known.
inline void make_room_for_kept(winnow_prune_args& args, Arrays& arrays, bool signs) {
  const int64_t element = args.dtype == WINNOW_F32 ? 4 : 2;
  int64_t* starts = arrays.zeros<int64_t>(2 * args.slots);
  int64_t kept = 0, sign_bytes = 0;
  for (int64_t slot = 0; slot < args.slots; ++slot) {
    starts[2 * slot] = kept;
    starts[2 * slot + 1] = sign_bytes;
    kept += args.counts[slot] * element;
    sign_bytes += (args.dim - args.counts[slot] + 7) / 8;
  }
  if (args.share >= 0) args.starts = starts;
  args.kept = arrays.zeros<char>(kept);
  if (signs) args.signs = arrays.zeros<uint8_t>(sign_bytes);
}
