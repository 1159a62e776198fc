// The largest sizes of a row.
//
// Sizes are non-negative floats, whose bits order as they do: thresholds are found by halving an interval of bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "prune/row.hpp"
#include "prune/sums.hpp"

namespace winnow {
namespace {

// Bits from the least size on and below `high`.
struct Interval {
  int64_t low, high;
  int32_t middle() const { return static_cast<int32_t>(low + (high - low) / 2); }
};

inline Interval range(const PruneRow& row) {
  const FloatBits* bits = row.bits();
  int32_t least = bits[0], most = bits[0];
  for (int64_t j = 0; j < row.dim; ++j) {
    least = bits[j] < least ? bits[j] : least;
    most = bits[j] > most ? bits[j] : most;
  }
  return {least, int64_t{most} + 1};
}

// The number of sizes that have at least these bits.
inline int64_t count_from(const PruneRow& row, int32_t low) {
  const FloatBits* bits = row.bits();
  int32_t count = 0;
  for (int64_t j = 0; j < row.width(); ++j) count += bits[j] >= low;
  return count;
}

// Kept are the sizes whose bits are above these, and of those that equal them the first so many.
struct Cut {
  int32_t bits;
  int64_t equal;
};

// The `count` largest of a row.
inline Cut largest(const PruneRow& row, int64_t count) {
  if (count >= row.dim) return {-1, 0};
  // From low on there are more than `count`, from high on fewer.
  Interval among = range(row);
  while (among.high - among.low > 1) {
    const int32_t middle = among.middle();
    const int64_t found = count_from(row, middle);
    if (found == count) return {middle - 1, 0};
    (found > count ? among.low : among.high) = middle;
  }
  const int32_t edge = static_cast<int32_t>(among.low);
  return {edge, count - count_from(row, edge + 1)};
}

// The fewest of a row whose sizes, or squares of sizes, reach a share of their sum, at least one.
template <bool kSquared>
inline Cut fewest(const PruneRow& row, double share) {
  const double target = share * sum_from<kSquared>(row, 0);
  // From low on the sum reaches the target, from high on it does not.
  Interval among = range(row);
  int64_t more = row.dim, fewer = 0;
  while (among.high - among.low > 1 && more - fewer > 1) {
    const int32_t middle = among.middle();
    const bool reached = sum_from<kSquared>(row, middle) >= target;
    (reached ? among.low : among.high) = middle;
    (reached ? more : fewer) = count_from(row, middle);
  }
  const int32_t edge = static_cast<int32_t>(among.low);
  if (more - fewer == 1) return {edge - 1, 0};
  float size;
  std::memcpy(&size, &edge, sizeof size);
  const double each = kSquared ? static_cast<double>(size) * size : size;
  double sum = sum_from<kSquared>(row, edge + 1) + each;
  int64_t equal = 1;
  for (; equal < more - fewer && sum < target; ++equal) sum += each;
  return {edge, equal};
}

inline Cut cut(const winnow_prune_args& args, const PruneRow& row) {
  if (args.share < 0) return largest(row, args.most);
  const Cut reaching = args.squared ? fewest<true>(row, args.share) : fewest<false>(row, args.share);
  if (!args.levels) return reaching;
  const int64_t needed = count_from(row, reaching.bits + 1) + reaching.equal;
  int64_t level = 0;
  while (level + 1 < args.level_count && args.bounds[level] < needed) ++level;
  return largest(row, args.levels[level]);
}

}  // namespace
}  // namespace winnow
