// The places of rows that keep channels of their own.
#pragma once

#include <cstdint>

#include "packed/format.hpp"
#include "packed/scratch.hpp"
#include "simd/bits.hpp"
#include "simd/prefetch.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// How many of `dim` channels a mask keeps.
inline int64_t count_kept(const uint8_t* mask, int64_t dim) {
  const int64_t bytes = bytes_of_bits(dim);
  int64_t kept = 0, byte = 0;
  for (; byte + 8 <= bytes; byte += 8) kept += count_bits(load_word(mask + byte) & first_bits(dim - 8 * byte));
  for (; byte < bytes; ++byte) kept += count_bits(mask[byte] & first_bits(dim - 8 * byte));
  return kept;
}

// Goes through the rows of consecutive slots, from `slot` on.
class MaskedRows {
 public:
  MaskedRows() = default;

  // `slots` of a part have `dim` channels each, of which masks tell who stayed.
  MaskedRows(const winnow_rows& rows, int64_t slots, int64_t slot, int64_t dim, int64_t element_bytes)
      : rows_(&rows),
        dim_(dim),
        element_bytes_(element_bytes),
        slot_(slot),
        mask_bytes_(bytes_of_bits(dim)),
        mask_end_(rows.masks + slots * mask_bytes_),
        data_(bytes_at(rows.data)),
        signs_(rows.signs) {
    if (!rows.starts) {
      data_ += slot * rows.row_bytes;
      if (signs_) signs_ += slot * rows.sign_row_bytes;
      return;
    }
    const int64_t block = slot / kStartStep;
    // Whatever the table says, no row begins outside the arrays.
    data_ += inside(rows.starts[2 * block], rows.data_bytes);
    if (signs_) signs_ += inside(rows.starts[2 * block + 1], rows.signs_bytes);
    for (slot_ = block * kStartStep; slot_ < slot;) step(count_kept());
  }

  // Of the next row.
  int64_t slot() const { return slot_; }
  const uint8_t* mask() const { return rows_->masks + slot_ * mask_bytes_; }
  const uint8_t* data() const { return data_; }
  const uint8_t* signs() const { return signs_; }  // null where there are none

  int64_t mask_bytes() const { return mask_bytes_; }
  const uint8_t* mask_end() const { return mask_end_; }

  int64_t count_kept() const { return winnow::count_kept(mask(), dim_); }

  // Past the next row. That it keeps `kept` entries matters only where rows differ in length.
  void step(int64_t kept) {
    const bool fixed = !rows_->starts;
    data_ += fixed ? rows_->row_bytes : bytes_of_row(*rows_, kept, element_bytes_);
    if (signs_) signs_ += fixed ? rows_->sign_row_bytes : bytes_of_bits(dim_ - kept);
    ++slot_;
  }

  // Past `slots` rows, behind which entries and signs are where they are told to be.
  void jump(int64_t slots, const uint8_t* data, const uint8_t* signs) {
    slot_ += slots;
    data_ = data;
    signs_ = signs;
  }

  // The lines of a row to come.
  void prefetch_next() const { prefetch_row(data_, rows_->row_bytes); }

  // True where the next `count` rows may be read beyond their ends, whatever their masks say.
  bool open_ahead(int64_t count) const {
    const int64_t most = bytes_of_row(*rows_, dim_, element_bytes_), most_signs = bytes_of_bits(dim_);
    const int64_t data = count * (rows_->starts ? most : rows_->row_bytes) + most;
    const int64_t signs = count * (rows_->starts ? most_signs : rows_->sign_row_bytes) + most_signs;
    return bytes_at(rows_->data) + rows_->data_bytes - data_ >= data + kRowSlack &&
           (!signs_ || rows_->signs + rows_->signs_bytes - signs_ >= signs + kRowSlack) &&
           mask_end_ - rows_->masks >= (slot_ + count) * mask_bytes_ + kRowSlack;
  }

 private:
  static int64_t inside(int64_t start, int64_t bytes) { return start < 0 ? 0 : least(start, bytes); }

  const winnow_rows* rows_ = nullptr;
  int64_t dim_ = 0, element_bytes_ = 0, slot_ = 0, mask_bytes_ = 0;
  const uint8_t *mask_end_ = nullptr, *data_ = nullptr, *signs_ = nullptr;
};

}  // namespace
}  // namespace winnow
