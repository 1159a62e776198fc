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

// Mean and standard deviation of the sizes of `count` marked channels, whose sum is given.
inline void moments(const PruneRow& row, const uint64_t* words, double sum, double count, float* stats) {
  const double mean = sum / count;
  const float near = static_cast<float>(mean), rest = static_cast<float>(mean - near);
  double squares = 0;
  for (int64_t j = 0; j < row.dim; ++j) {
    const double deviation = row.sizes[j] - near;
    squares += words[j / 64] >> j % 64 & 1 ? deviation * deviation : 0;
  }
  const double variance = squares / count - static_cast<double>(rest) * rest;
  stats[0] = near;
  stats[1] = static_cast<float>(std::sqrt(variance > 0 ? variance : 0));
}

// The moments of the pruned sizes, and the largest of them.
inline void pruned_moments(const PruneRow& row, double count, float* stats) {
  moments(row, row.gone, sum_where(row, row.sizes, row.gone), count, stats);
  float most = 0;
  for (int64_t j = 0; j < row.dim; ++j) {
    if ((row.gone[j / 64] >> j % 64 & 1) && row.sizes[j] > most) most = row.sizes[j];
  }
  stats[2] = most;
}

inline void summarize(const winnow_prune_args& args, const PruneRow& row, int64_t slot, int64_t gone) {
  const double dim = static_cast<double>(row.dim), pruned = static_cast<double>(gone > 0 ? gone : 1);
  float* stat = args.stats + slot;
  switch (args.statistic) {
    case WINNOW_PRUNED_SIZES: *stat = static_cast<float>(sum_where(row, row.sizes, row.gone) / pruned); return;
    case WINNOW_PRUNED_NUMBERS: *stat = static_cast<float>(sum_where(row, row.numbers, row.gone) / pruned); return;
    case WINNOW_PRUNED_RMS: *stat = static_cast<float>(std::sqrt(squares_where(row, row.gone) / pruned)); return;
    case WINNOW_MEAN: *stat = static_cast<float>(sum_from(row, 0) / dim); return;
    case WINNOW_PRUNED_MOMENTS: return pruned_moments(row, pruned, args.stats + 3 * slot);
    default: break;
  }
  // The moments of all: what is marked does not matter any more.
  for (int64_t word = 0; word < row.words; ++word) row.gone[word] = row.channels(word);
  moments(row, row.gone, sum_from(row, 0), dim, args.stats + 2 * slot);
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
