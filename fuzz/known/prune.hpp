// Channels that rows keep, by sorting, and what is written of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "bytes.hpp"
#include "known/compare.hpp"
#include "known/numbers.hpp"
#include "pruning.hpp"
#include "winnow_native.h"

class KnownPruning {
 public:
  KnownPruning(Bytes& from, uint64_t seed) : arrays_(seed), args_(pruning_of(from, arrays_, false)) {
    make_room(args_, arrays_);
    signs_ = from.coin();
  }

  // Runs the kernels. Throws Wrong where they did not find what they had to.
  void check() {
    expect(winnow_prune(&args_) == WINNOW_OK, "winnow_prune refused");
    for (int64_t slot = 0; slot < args_.slots; ++slot) check_mask(slot);
    make_room_for_kept(args_, arrays_, signs_);
    expect(winnow_take(&args_) == WINNOW_OK, "winnow_take refused");
    int64_t kept = 0, sign_bytes = 0;
    for (int64_t slot = 0; slot < args_.slots; ++slot) check_taken(slot, kept, sign_bytes);
  }

 private:
  double number(int64_t slot, int64_t d) const {
    return number_at(args_.dtype, args_.rows, slot * args_.row_stride + d);
  }
  bool stays(int64_t slot, int64_t d) const { return args_.masks[slot * ((args_.dim + 7) / 8) + d / 8] >> d % 8 & 1; }

  // In fp32, as the definition has them: which of two is larger must not depend on more digits.
  std::vector<double> sizes(int64_t slot) const {
    std::vector<double> found;
    for (int64_t d = 0; d < args_.dim; ++d) {
      float size = std::fabs(static_cast<float>(number(slot, d)));
      if (args_.inverse_norms) size /= std::fabs(args_.inverse_norms[args_.head[slot] * args_.dim + d]);
      found.push_back(size);
    }
    return found;
  }

  // The largest first, the lower channel first among equals.
  std::vector<int64_t> order(const std::vector<double>& sizes) const {
    std::vector<int64_t> channels(sizes.size());
    std::iota(channels.begin(), channels.end(), 0);
    std::stable_sort(channels.begin(), channels.end(), [&](int64_t a, int64_t b) { return sizes[a] > sizes[b]; });
    return channels;
  }

  void check_mask(int64_t slot) const {
    const std::vector<double> of = sizes(slot);
    const std::vector<int64_t> channels = order(of);
    const int64_t count = args_.counts[slot];
    expect(possible(of, channels, count), "how many channels of row " + std::to_string(slot) + " stay");
    for (int64_t i = 0; i < args_.dim; ++i) {
      expect(stays(slot, channels[i]) == (i < count), "which channels of row " + std::to_string(slot) + " stay");
    }
    check_statistics(slot, of);
  }

  // True if so many may stay. A sum that misses the share by no more than its rounding may reach it, or may not.
  bool possible(const std::vector<double>& sizes, const std::vector<int64_t>& channels, int64_t count) const {
    if (args_.share < 0) return count == args_.most;
    double all = 0, sum = 0;
    for (double size : sizes) all += args_.squared ? size * size : size;
    bool found = false;
    for (int64_t needed = 1; needed <= args_.dim; ++needed) {
      const double size = sizes[channels[needed - 1]];
      const double before = sum;
      sum += args_.squared ? size * size : size;
      const double share = args_.share * all, rounding = 1e-12 * all;
      const bool too_few = sum < share - rounding, too_many = needed > 1 && before >= share + rounding;
      found |= !too_few && !too_many && count == level(needed);
    }
    return found;
  }
  int64_t level(int64_t needed) const {
    if (!args_.levels) return needed;
    int64_t i = 0;
    while (i + 1 < args_.level_count && args_.bounds[i] < needed) ++i;
    return std::min(args_.levels[i], args_.dim);
  }

  void check_statistics(int64_t slot, const std::vector<double>& sizes) const {
    std::vector<double> pruned, signed_pruned;
    for (int64_t d = 0; d < args_.dim; ++d) {
      if (stays(slot, d)) continue;
      pruned.push_back(sizes[d]);
      signed_pruned.push_back(number(slot, d));
    }
    std::vector<double> expected;
    switch (args_.statistic) {
      case WINNOW_PRUNED_SIZES: expected = {mean(pruned)}; break;
      case WINNOW_PRUNED_NUMBERS: expected = {mean(signed_pruned)}; break;
      case WINNOW_MEAN: expected = {mean(sizes)}; break;
      case WINNOW_MOMENTS: expected = {mean(sizes), deviation(sizes)}; break;
      case WINNOW_PRUNED_RMS: expected = {std::hypot(mean(pruned), deviation(pruned))}; break;
      default: expected = {mean(pruned), deviation(pruned), pruned.empty() ? 0 : *largest(pruned)};
    }
    const float* found = args_.stats + slot * static_cast<int64_t>(expected.size());
    expect_close(WINNOW_F32, found, expected, 1e-6 * *largest(sizes), "statistics of row " + std::to_string(slot));
  }
  static std::vector<double>::const_iterator largest(const std::vector<double>& numbers) {
    return std::max_element(numbers.begin(), numbers.end());
  }
  static double mean(const std::vector<double>& numbers) {
    if (numbers.empty()) return 0;
    return std::accumulate(numbers.begin(), numbers.end(), 0.0) / static_cast<double>(numbers.size());
  }
  static double deviation(const std::vector<double>& numbers) {
    const double middle = mean(numbers);
    std::vector<double> squares;
    for (double each : numbers) squares.push_back((each - middle) * (each - middle));
    return std::sqrt(mean(squares));
  }

  // Kept numbers bit by bit, and the signs of the others; both go on behind those of the row before.
  void check_taken(int64_t slot, int64_t& kept, int64_t& sign_bytes) const {
    int64_t gone = 0;
    for (int64_t d = 0; d < args_.dim; ++d) {
      if (stays(slot, d)) {
        const uint32_t from = bits_at(args_.dtype, args_.rows, slot * args_.row_stride + d);
        expect(bits_at(args_.dtype, args_.kept, kept++) == from, "a kept number of row " + std::to_string(slot));
      } else if (args_.signs) {
        const bool negative = args_.signs[sign_bytes + gone / 8] >> gone % 8 & 1;
        expect(negative == (number(slot, d) < 0), "a sign of row " + std::to_string(slot));
        ++gone;
      }
    }
    if (args_.signs) sign_bytes += (gone + 7) / 8;
  }

  Arrays arrays_;
  winnow_prune_args args_;
  bool signs_;
};

inline void check_prune(Bytes& from, uint64_t seed) { KnownPruning(from, seed).check(); }
