// Rows of packed keys or values -> fp32, a few at a time.
//
// Rows are unpacked in whole vectors: what is written behind a row is the next row's, or slack. What is read behind
// a row is the next row's too; near the end of an array a copy of the row is read instead.
#pragma once

#include <cstdint>

#include "attend/contract.hpp"
#include "packed/fill.hpp"
#include "packed/format.hpp"
#include "packed/masked_rows.hpp"
#include "packed/unpack.hpp"
#include "simd/bits.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Unpacks consecutive rows of slots of one head. Scales of slots, and those of scale groups of slots, are left to the
// caller where all channels of a row are there.
template <class T>
class RowReader {
 public:
  using Number = float;

  // `rows` hold the slots of a part, `dim` channels each; `memory` is for kReaderRows rows.
  RowReader(const winnow_rows& rows, const winnow_part& part, int64_t head, int64_t slot, int64_t dim,
            bool grouped_channels, float* memory, int64_t memory_row)
      : rows_(rows),
        dim_(rows.masks ? dim : rows.kept),
        grouped_channels_(grouped_channels && rows.scaling == WINNOW_GROUPED),
        slot_(slot),
        data_(bytes_at(rows.data) + slot * rows.row_bytes),
        data_end_(bytes_at(rows.data) + rows.data_bytes),
        kept_(memory),
        data_copy_(memory + memory_row),
        mask_copy_(memory + 2 * memory_row),
        sign_copy_(memory + 3 * memory_row) {
    if (!rows.masks) return;
    masked_ = MaskedRows(rows, part.slots, slot, dim, sizeof(T));
    fill_ = Fill<T>(rows, head, dim, memory + 4 * memory_row, memory + 5 * memory_row);
  }

  // The next `count` rows, one after another without gaps.
  void unpack(int64_t count, float* out) {
    const bool open = rows_.masks && masked_.open_ahead(count);
    for (int64_t i = 0; i < count; ++i, out += dim_) {
      if (!rows_.masks) {
        unpack_whole(out);
      } else if (open) {
        unpack_masked<true>(out);
      } else {
        unpack_masked<false>(out);
      }
    }
  }

 private:
  static const T* elements(const void* p) { return static_cast<const T*>(p); }

  void unpack_whole(float* out) {
    const int64_t slot = slot_++, bytes = bytes_of_row(rows_, dim_, sizeof(T));
    const uint8_t* row = readable(data_, bytes, data_end_, data_copy_);
    prefetch_row(data_, bytes);
    data_ += bytes;
    if (rows_.bits == 16) return convert(row, dim_, out);
    if (rows_.scaling == WINNOW_PER_SLOT) return unpack_numbers<true>(rows_.bits, row, dim_, out);
    if (rows_.scaling == WINNOW_CHANNEL_GROUPS) return unpack_groups<true>(row, slot, rows_.scale_group, out);
    if (grouped_channels_) return unpack_groups<false>(row, slot, kScaleGroup, out);
    unpack_numbers<false>(rows_.bits, row, dim_, out);
  }

  // Scales are of `size` channels. Rows without masks leave the copies of masks and of kept entries free.
  template <bool kSigned>
  void unpack_groups(const uint8_t* row, int64_t slot, int64_t size, float* out) {
    const int64_t groups = divide_up(dim_, size), first = slot * groups;
    float *scale = kept_, *zero = mask_copy_;
    for (int64_t group = 0; group < groups; group += Vec::width) {
      store(scale + group, load_up_to(elements(rows_.scales) + first + group, groups - group));
      if (!kSigned) store(zero + group, load_up_to(elements(rows_.zeros) + first + group, groups - group));
    }
    unpack_scaled<kSigned>(rows_.bits, row, dim_, scale, zero, size, out);
  }

  static void convert(const uint8_t* row, int64_t count, float* out) {
    for (int64_t d = 0; d < count; d += Vec::width) store(out + d, load(elements(row) + d));
  }

  // kOpen: see MaskedRows::open_ahead.
  template <bool kOpen>
  void unpack_masked(float* out) {
    const uint8_t *mask = masked_.mask(), *row = masked_.data(), *signs = masked_.signs();
    const int64_t slot = masked_.slot();
    const int64_t kept = kOpen && !rows_.starts && rows_.bits >= 8 ? 0 : masked_.count_kept();
    masked_.prefetch_next();
    if constexpr (!kOpen) {
      row = readable(row, bytes_of_row(rows_, kept, sizeof(T)), data_end_, data_copy_);
      if (signs) signs = readable(signs, bytes_of_bits(dim_ - kept), rows_.signs + rows_.signs_bytes, sign_copy_);
      mask = readable(mask, masked_.mask_bytes(), masked_.mask_end(), mask_copy_);
    }
    fill_.begin(slot, mask, masked_.mask_bytes());
    if (rows_.bits == 16) {
      expand_row<false>(elements(row), mask, signs, broadcast(1.0f), out);
    } else {
      const Vec scale = broadcast(to_float(elements(rows_.scales)[slot]));
      if (rows_.bits == 8) {
        expand_row<true>(reinterpret_cast<const Int8*>(row), mask, signs, scale, out);
      } else {
        unpack_numbers<true>(rows_.bits, row, kept, kept_);
        expand_row<true>(kept_, mask, signs, scale, out);
      }
    }
    masked_.step(kept);
  }

  // Kept entries go to their channels, between the fill.
  template <bool kScaled, class Number>
  void expand_row(const Number* kept, const uint8_t* mask, const uint8_t* signs, Vec scale, float* out) const {
    int64_t pruned = 0, d = 0;
    const Entry fill = fill_.entry();
    const auto word = [&](int64_t channels) {
      const uint64_t valid = first_bits(channels), bits = load_word(mask + d / 8) & valid, gone = ~bits & valid;
      const uint64_t negative = signs ? deposit(bits_at(signs, pruned), gone) : 0;
      pruned += count_bits(gone);
      return Word{bits, negative};
    };
    for (; d + 64 <= dim_; d += 64) {
      const Word here = word(64);
      unroll<64 / Vec::width>([&](auto i) { expand_lanes<kScaled>(here, i * Vec::width, kept, fill, d, scale, out); });
      kept += count_bits(here.bits);
    }
    if (d < dim_) {
      const Word here = word(dim_ - d);
      for (int64_t lane = 0; d + lane < dim_; lane += Vec::width) {
        expand_lanes<kScaled>(here, lane, kept, fill, d, scale, out);
      }
    }
  }

  // 64 channels: which are kept, and which of the others are negative.
  struct Word {
    uint64_t bits, negative;
  };

  // One vector of the channels from d on; `kept` begins at d, whatever the lane.
  template <bool kScaled, class Number>
  __attribute__((always_inline)) static void expand_lanes(const Word& word, int64_t lane, const Number* kept,
                                                          const Entry& fill, int64_t d, Vec scale, float* out) {
    const Number* from = kept + count_bits(word.bits & first_bits(lane));
    const Vec entry = negate_where(static_cast<uint32_t>(word.negative >> lane), fill.at(d + lane));
    Vec values = load(from);
    if constexpr (kScaled) values = values * scale;
    store(out + d + lane, expand(entry, static_cast<uint32_t>(word.bits >> lane), values));
  }

  const winnow_rows& rows_;
  int64_t dim_;  // entries of a row as unpacked
  bool grouped_channels_;
  int64_t slot_;         // the next row's, and
  const uint8_t* data_;  // where it is, if no masks tell
  const uint8_t* data_end_;
  MaskedRows masked_;
  Fill<T> fill_;
  float *kept_, *data_copy_, *mask_copy_, *sign_copy_;
};

}  // namespace
}  // namespace winnow
