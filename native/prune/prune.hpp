// Choosing the channels of rows that stay, with a statistic of the others.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "prune/contract.hpp"
#include "prune/row.hpp"
#include "prune/selection.hpp"
#include "prune/sums.hpp"
#include "simd/bits.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Sets the masks of a row; returns how many channels it keeps.
inline int64_t mark(const PruneRow& row, const Cut& cut) {
  int64_t count = 0, equal = cut.equal;
  for (int64_t word = 0; word < row.words; ++word) {
    const float* sizes = row.sizes + 64 * word;
    uint64_t kept = word_above(sizes, cut.bits);
    if (equal) {
      const uint64_t tied = word_above(sizes, cut.bits - 1) & ~kept;
      const uint64_t first = deposit(first_bits(equal), tied);
      equal -= count_bits(first);
      kept |= first;
    }
    row.kept[word] = kept;
    row.gone[word] = ~kept & row.channels(word);
    count += count_bits(kept);
  }
  return count;
}

// Mean and standard deviation of all sizes.
inline void moments(const PruneRow& row, float* stats) {
  const double mean = sum_from(row, 0) / static_cast<double>(row.dim);
  const float near = static_cast<float>(mean), rest = static_cast<float>(mean - near);
  double squares = 0;
  for (int64_t j = 0; j < row.dim; ++j) {
    const double deviation = row.sizes[j] - near;
    squares += deviation * deviation;
  }
  const double variance = squares / static_cast<double>(row.dim) - static_cast<double>(rest) * rest;
  stats[0] = near;
  stats[1] = static_cast<float>(std::sqrt(variance > 0 ? variance : 0));
}

inline void summarize(const winnow_prune_args& args, const PruneRow& row, int64_t slot, int64_t gone) {
  if (args.statistic == WINNOW_MOMENTS) return moments(row, args.stats + 2 * slot);
  double sum, count = static_cast<double>(gone > 0 ? gone : 1);
  if (args.statistic == WINNOW_MEAN) {
    sum = sum_from(row, 0);
    count = static_cast<double>(row.dim);
  } else {
    sum = sum_where(row, args.statistic == WINNOW_PRUNED_SIZES ? row.sizes : row.numbers, row.gone);
  }
  args.stats[slot] = static_cast<float>(sum / count);
}

template <class T>
inline void prune(const winnow_prune_args& args, int64_t first, int64_t last, float* scratch) {
  const PruneRow row(args.dim, scratch);
  const int64_t mask_bytes = divide_up(args.dim, 8);
  for (int64_t slot = first; slot < last; ++slot) {
    widen_row(static_cast<const T*>(args.rows) + slot * args.row_stride, row);
    measure(args.inverse_norms ? args.inverse_norms + args.head[slot] * args.dim : nullptr, row);
    const int64_t count = mark(row, cut(args, row));
    args.counts[slot] = count;
    std::memcpy(args.masks + slot * mask_bytes, row.kept, static_cast<size_t>(mask_bytes));
    summarize(args, row, slot, args.dim - count);
  }
}

}  // namespace
}  // namespace winnow
