// Which entries of a row stay, what stands for the others, and where both go.
//
// Sizes are non-negative floats, whose bits order as they do: thresholds are found by halving an interval of bits.
// Sums add floats, or products of two floats, in double precision, lane after lane in one order: such products are
// exact, so that instruction sets with and without fused multiplication agree to the last bit.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "prune/contract.hpp"
#include "simd/bits.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// A float's bits, wherever they lie.
typedef int32_t __attribute__((may_alias)) FloatBits;

// A row in scratch, padded to whole words of its mask.
struct PruneRow {
  int64_t dim;
  int64_t words;
  uint64_t* kept;
  uint64_t* gone;
  float* numbers;  // zero behind dim
  float* sizes;    // behind dim the bits of -1, which are below those of any size

  PruneRow(int64_t dim_, float* scratch) : dim(dim_), words(mask_words(dim_)) {
    kept = reinterpret_cast<uint64_t*>(scratch);
    gone = kept + words;
    numbers = scratch + 4 * words;
    sizes = numbers + width();
  }
  int64_t width() const { return words * 64; }
  const FloatBits* bits() const { return reinterpret_cast<const FloatBits*>(sizes); }
  uint64_t channels(int64_t word) const { return first_bits(dim - 64 * word); }
};

// The numbers of a row as fp32, zero behind its end.
template <class T>
inline void widen_row(const T* from, const PruneRow& row) {
  int64_t j = 0;
  for (; j + Vec::width <= row.dim; j += Vec::width) store(row.numbers + j, load(from + j));
  if (j < row.dim) store(row.numbers + j, load_first(from + j, row.dim - j)), j += Vec::width;
  for (; j < row.width(); j += Vec::width) store(row.numbers + j, broadcast(0.0f));
}

// |number|, or |number / inverse norm|.
inline void measure(const float* inverse_norms, const PruneRow& row) {
  int64_t j = 0;
  if (inverse_norms) {
    for (; j + Vec::width <= row.dim; j += Vec::width) {
      store(row.sizes + j, load(row.numbers + j) / load(inverse_norms + j));
    }
    for (; j < row.dim; ++j) row.sizes[j] = row.numbers[j] / inverse_norms[j];
  } else {
    std::memcpy(row.sizes, row.numbers, static_cast<size_t>(row.dim) * sizeof(float));
  }
  FloatBits* bits = reinterpret_cast<FloatBits*>(row.sizes);
  for (j = 0; j < row.dim; ++j) bits[j] &= 0x7fffffff;
  std::memset(row.sizes + row.dim, 0xff, static_cast<size_t>(row.width() - row.dim) * sizeof(float));
}

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

// How many sizes have at least these bits.
inline int64_t count_from(const PruneRow& row, int32_t low) {
  const FloatBits* bits = row.bits();
  int32_t count = 0;
  for (int64_t j = 0; j < row.width(); ++j) count += bits[j] >= low;
  return count;
}

// Adds up sixteen floats at a time, in vectors as wide as the machine's.
class LaneSums {
 public:
  static constexpr int kSums = 16;
  static constexpr int kLanes = __BIGGEST_ALIGNMENT__ / 4;
  typedef int32_t Bits __attribute__((vector_size(kLanes * 4)));

  // The numbers at `from` whose bits are left by mask(bits, i), i counting vectors.
  template <class Mask>
  void add(const float* from, const Mask& mask) {
    unroll<kSums / kLanes>([&](auto i) {
      Bits bits;
      std::memcpy(&bits, from + i * kLanes, sizeof bits);
      bits &= mask(bits, i);
      Floats halves[2];
      std::memcpy(halves, &bits, sizeof halves);
      sums_[2 * i] += __builtin_convertvector(halves[0], Doubles);
      sums_[2 * i + 1] += __builtin_convertvector(halves[1], Doubles);
    });
  }
  double total() const {
    double lanes[kSums];
    std::memcpy(lanes, sums_, sizeof lanes);
    for (int half = kSums / 2; half; half /= 2) {
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
  }

 private:
  typedef float Floats __attribute__((vector_size(kLanes * 2)));
  typedef double Doubles __attribute__((vector_size(kLanes * 4)));
  Doubles sums_[2 * kSums / kLanes] = {};
};

// The sum of the sizes that have at least these bits.
inline double sum_from(const PruneRow& row, int32_t low) {
  LaneSums sums;
  for (int64_t j = 0; j < row.dim; j += LaneSums::kSums) {
    sums.add(row.sizes + j, [&](const LaneSums::Bits& bits, auto) { return bits >= low; });
  }
  return sums.total();
}

// The sum of the numbers of marked channels.
inline double sum_where(const PruneRow& row, const float* numbers, const uint64_t* words) {
  LaneSums::Bits lane;
  for (int i = 0; i < LaneSums::kLanes; ++i) lane[i] = 1 << i;
  LaneSums sums;
  for (int64_t j = 0; j < row.dim; j += LaneSums::kSums) {
    const int32_t marks = static_cast<int32_t>(words[j / 64] >> j % 64 & 0xffff);
    sums.add(numbers + j, [&](const LaneSums::Bits&, auto i) {
      const LaneSums::Bits mine = LaneSums::Bits{} + (marks >> (i * LaneSums::kLanes));
      return (mine & lane) == lane;
    });
  }
  return sums.total();
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

// The fewest of a row whose sizes reach a share of their sum, at least one.
inline Cut fewest(const PruneRow& row, double share) {
  const double target = share * sum_from(row, 0);
  // From low on the sum reaches the target, from high on it does not.
  Interval among = range(row);
  int64_t more = row.dim, fewer = 0;
  while (among.high - among.low > 1 && more - fewer > 1) {
    const int32_t middle = among.middle();
    const bool reached = sum_from(row, middle) >= target;
    (reached ? among.low : among.high) = middle;
    (reached ? more : fewer) = count_from(row, middle);
  }
  const int32_t edge = static_cast<int32_t>(among.low);
  if (more - fewer == 1) return {edge - 1, 0};
  float size;
  std::memcpy(&size, &edge, sizeof size);
  double sum = sum_from(row, edge + 1) + size;
  int64_t equal = 1;
  for (; equal < more - fewer && sum < target; ++equal) sum += size;
  return {edge, equal};
}

inline Cut cut(const winnow_prune_args& args, const PruneRow& row) {
  if (args.share < 0) return largest(row, args.most);
  const Cut reaching = fewest(row, args.share);
  if (!args.levels) return reaching;
  const int64_t needed = count_from(row, reaching.bits + 1) + reaching.equal;
  const int64_t* level = args.levels;
  while (level + 1 < args.levels + args.level_count && *level < needed) ++level;
  return largest(row, *level);
}

// Channels whose bits in memory at `numbers` are above, as a mask word.
inline uint64_t word_above(const float* numbers, int32_t bits) {
  uint64_t word = 0;
  for (int64_t j = 0; j < 64; j += Vec::width) word |= uint64_t{lanes_above(numbers + j, bits)} << j;
  return word;
}

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

inline void summarise(const winnow_prune_args& args, const PruneRow& row, int64_t slot, int64_t gone) {
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
  const int64_t mask_bytes = (args.dim + 7) / 8;
  for (int64_t slot = first; slot < last; ++slot) {
    widen_row(static_cast<const T*>(args.rows) + slot * args.row_stride, row);
    measure(args.inverse_norms ? args.inverse_norms + args.head[slot] * args.dim : nullptr, row);
    const int64_t count = mark(row, cut(args, row));
    args.counts[slot] = count;
    std::memcpy(args.masks + slot * mask_bytes, row.kept, static_cast<size_t>(mask_bytes));
    summarise(args, row, slot, args.dim - count);
  }
}

// Bits that follow one another in memory, from a whole byte on.
class BitStream {
 public:
  explicit BitStream(uint8_t* to) : to_(to) {}

  void append(uint64_t bits, int64_t count) {
    pending_ |= bits << held_;
    if (held_ + count < 64) {
      held_ += count;
      return;
    }
    std::memcpy(to_, &pending_, 8);
    to_ += 8;
    pending_ = held_ ? bits >> (64 - held_) : 0;
    held_ += count - 64;
  }
  void end() { std::memcpy(to_, &pending_, static_cast<size_t>((held_ + 7) / 8)); }

 private:
  uint8_t* to_;
  uint64_t pending_ = 0;
  int64_t held_ = 0;
};

template <class T>
inline void copy_kept(const T* from, const PruneRow& row, T* to) {
  for (int64_t word = 0; word < row.words; ++word) {
    for (uint64_t left = row.kept[word]; left; left &= left - 1) *to++ = from[64 * word + __builtin_ctzll(left)];
  }
}

inline void write_signs(const PruneRow& row, uint8_t* to) {
  constexpr int32_t kMinusZero = INT32_MIN;
  BitStream signs(to);
  for (int64_t word = 0; word < row.words; ++word) {
    const float* numbers = row.numbers + 64 * word;
    const uint64_t negative = word_above(numbers, kMinusZero) & ~word_above(numbers, -1);
    signs.append(extract(negative, row.gone[word]), count_bits(row.gone[word]));
  }
  signs.end();
}

template <class T>
inline void take(const winnow_prune_args& args, int64_t first, int64_t last, float* scratch) {
  const PruneRow row(args.dim, scratch);
  const int64_t mask_bytes = (args.dim + 7) / 8;
  const int64_t kept_bytes = args.most * static_cast<int64_t>(sizeof(T)), sign_bytes = (args.dim - args.most + 7) / 8;
  row.kept[row.words - 1] = 0;
  for (int64_t slot = first; slot < last; ++slot) {
    const T* from = static_cast<const T*>(args.rows) + slot * args.row_stride;
    std::memcpy(row.kept, args.masks + slot * mask_bytes, static_cast<size_t>(mask_bytes));
    char* to = static_cast<char*>(args.kept) + (args.starts ? args.starts[2 * slot] : slot * kept_bytes);
    copy_kept(from, row, reinterpret_cast<T*>(to));
    if (!args.signs) continue;
    for (int64_t word = 0; word < row.words; ++word) row.gone[word] = ~row.kept[word] & row.channels(word);
    widen_row(from, row);
    write_signs(row, args.signs + (args.starts ? args.starts[2 * slot + 1] : slot * sign_bytes));
  }
}

}  // namespace
}  // namespace winnow
