// Numbers in place of the entries that a slot did not keep.
#pragma once

#include <algorithm>
#include <cstdint>

#include "attend/contract.hpp"
#include "packed/format.hpp"
#include "simd/scalar.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Drawn sizes are offset + factor·z, for equally likely numbers z of the table: `count` from `first` on.
struct Draws {
  float offset, factor;
  int64_t first, count;  // none: nothing lies between the bounds

  int64_t at(uint32_t hash) const { return first + (static_cast<int64_t>(hash) * count >> 32); }
};

// As `Pruned` in pruned.py says what a slot draws from.
template <class T>
inline Draws draws_of(int32_t recovery, const T* stats, const float* table) {
  const float mean = to_float(stats[0]), *end = table + WINNOW_DRAWS;
  switch (recovery) {
    case WINNOW_GAUSSIAN: return {mean, to_float(stats[1]), 0, WINNOW_DRAWS};
    case WINNOW_EXPONENTIAL: return {0.0f, mean, 0, WINNOW_DRAWS};
    case WINNOW_TRUNCATED_GAUSSIAN: {
      const float deviation = to_float(stats[1]), most = to_float(stats[2]);
      if (!(deviation > 0)) return {mean, 0.0f, 0, 0};
      const float* first = std::lower_bound(table, end, -mean / deviation);
      return {mean, deviation, first - table, std::upper_bound(table, end, (most - mean) / deviation) - first};
    }
    default: {
      if (!(mean > 0)) return {mean, 0.0f, 0, 0};
      return {0.0f, mean, 0, std::upper_bound(table, end, to_float(stats[1]) / mean) - table};
    }
  }
}

// The finalizer of MurmurHash3.
inline uint32_t mix(uint32_t state) {
  state = (state ^ state >> 16) * 0x85ebca6bu;
  state = (state ^ state >> 13) * 0xc2b2ae35u;
  return state ^ state >> 16;
}

// The numbers of one slot.
struct Entry {
  Vec slot;
  const float* channels;

  Vec at(int64_t d) const { return slot * load(channels + d); }
};

// An entry is a number of the slot times one of the channel; where entries are drawn, the product is written out.
template <class T>
class Fill {
 public:
  Fill() = default;

  // `channels` and `drawn` are rows of dim floats and slack.
  Fill(const winnow_rows& rows, int64_t head, int64_t dim, float* channels, float* drawn)
      : rows_(&rows), dim_(dim), channels_(channels), drawn_(drawn), from_(channels) {
    for (int64_t d = 0; d < round_up(dim, 64); ++d) {
      channels[d] = d >= dim ? 0.0f : rows.inverse_norms ? rows.inverse_norms[head * dim + d] : 1.0f;
      drawn[d] = 0.0f;
    }
  }

  // Goes to a slot, whose mask has `mask_bytes` bytes.
  void begin(int64_t slot, const uint8_t* mask, int64_t mask_bytes) {
    from_ = channels_;
    if (rows_->recovery == WINNOW_CONSTANT) {
      slot_ = rows_->fill;
      return;
    }
    const T* stats = static_cast<const T*>(rows_->stats) + slot * rows_->stats_width;
    slot_ = to_float(stats[0]);
    if (!draws_sizes(rows_->recovery)) return;
    const Draws draws = draws_of(rows_->recovery, stats, rows_->draws);
    if (draws.count <= 0) return;
    draw(mask, mask_bytes, draws);
    slot_ = 1.0f;
    from_ = drawn_;
  }

  // Of the slot that began last.
  Entry entry() const { return {broadcast(slot_), from_}; }

 private:
  // As draw_indices in draws.py; entry = (offset + factor·draw)·channel.
  void draw(const uint8_t* mask, int64_t mask_bytes, const Draws& draws) {
    uint32_t state = rows_->seed;
    for (int64_t byte = 0; byte < mask_bytes; byte += 4) {
      uint32_t bits = 0;
      for (int64_t i = 0; i < 4 && byte + i < mask_bytes; ++i) bits |= static_cast<uint32_t>(mask[byte + i]) << (8 * i);
      state = mix(state ^ bits);
    }
    for (int64_t d = 0; d < dim_; ++d) {
      const float drawn = rows_->draws[draws.at(mix(state + static_cast<uint32_t>(d) * 0x9e3779b9u))];
      drawn_[d] = (draws.offset + draws.factor * drawn) * channels_[d];
    }
  }

  const winnow_rows* rows_ = nullptr;
  int64_t dim_ = 0;
  float* channels_ = nullptr;
  float* drawn_ = nullptr;
  const float* from_ = nullptr;
  float slot_ = 0.0f;
};

}  // namespace
}  // namespace winnow
