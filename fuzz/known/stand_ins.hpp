// Sizes of pruned entries, as src/winnow/kernels/formats/draws.py defines them.
#pragma once

#include <cstdint>
#include <vector>

#include "known/numbers.hpp"
#include "winnow_native.h"

inline int statistics_needed(int32_t recovery) {
  constexpr int needed[] = {1, 2, 1, 3, 2, 0};
  return needed[recovery];
}

inline bool is_drawn(int32_t recovery) { return recovery != WINNOW_DEGENERATE && recovery != WINNOW_CONSTANT; }

inline uint32_t mixed(uint32_t state) {
  state ^= state >> 16;
  state *= 0x85ebca6bu;
  state ^= state >> 13;
  state *= 0xc2b2ae35u;
  return state ^ state >> 16;
}

// Where numbers of an ascending table that may be drawn begin and end: those of bounds in fp32.
struct Drawn {
  double offset, factor;
  int64_t first, end;
};

inline Drawn drawn_from(int32_t recovery, const float* stats, const float* table) {
  int64_t first = 0, end = WINNOW_DRAWS;
  const auto bound = [&](float most) {
    while (end > 0 && table[end - 1] > most) --end;
  };
  switch (recovery) {
    case WINNOW_GAUSSIAN: return {stats[0], stats[1], first, end};
    case WINNOW_EXPONENTIAL: return {0, stats[0], first, end};
    case WINNOW_TRUNCATED_GAUSSIAN: {
      if (!(stats[1] > 0)) return {0, 0, 0, 0};
      while (first < WINNOW_DRAWS && table[first] < -stats[0] / stats[1]) ++first;
      bound((stats[2] - stats[0]) / stats[1]);
      return {stats[0], stats[1], first, end};
    }
    default: {
      if (!(stats[0] > 0)) return {0, 0, 0, 0};
      bound(stats[1] / stats[0]);
      return {0, stats[0], first, end};
    }
  }
}

// Of all channels of a slot, kept or not.
inline std::vector<double> sizes_of_pruned(const winnow_rows& rows, int32_t dtype, int64_t slot, int64_t dim) {
  float stats[3] = {rows.fill};
  for (int i = 0; i < statistics_needed(rows.recovery); ++i) {
    stats[i] = static_cast<float>(number_at(dtype, rows.stats, slot * rows.stats_width + i));
  }
  std::vector<double> sizes(static_cast<size_t>(dim), stats[0]);
  if (!is_drawn(rows.recovery)) return sizes;
  const Drawn drawn = drawn_from(rows.recovery, stats, rows.draws);
  if (drawn.end <= drawn.first) return sizes;
  const int64_t mask_bytes = (dim + 7) / 8;
  uint32_t state = rows.seed;
  for (int64_t word = 0; word < mask_bytes; word += 4) {
    uint32_t bits = 0;
    for (int64_t i = word; i < word + 4 && i < mask_bytes; ++i) {
      bits += static_cast<uint32_t>(rows.masks[slot * mask_bytes + i]) << (8 * (i - word));
    }
    state = mixed(state ^ bits);
  }
  for (int64_t d = 0; d < dim; ++d) {
    const uint64_t hash = mixed(state + static_cast<uint32_t>(d) * 0x9e3779b9u);
    const uint64_t possible = static_cast<uint64_t>(drawn.end - drawn.first);
    sizes[d] = drawn.offset + drawn.factor * rows.draws[drawn.first + static_cast<int64_t>(hash * possible >> 32)];
  }
  return sizes;
}
