// Where keys that keep channels of their own are, for those who read beyond their ends (see MaskedRows::open_ahead).
#pragma once

#include <cstdint>

#include "packed/format.hpp"
#include "packed/masked_rows.hpp"
#include "packed/scratch.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// The longest keys: sums of their products have 32 bits.
constexpr int64_t kMostMaskedDim = 4096;

// Signs of keys that have none: all are positive.
alignas(64) constexpr uint8_t kAllPositive[kMostMaskedDim / 8 + kRowSlack] = {};

struct KeyPlace {
  const uint8_t *mask, *entries, *signs;
};

// Goes from key to key by additions alone, unlike MaskedRows, which knows every format.
class KeyPlaces {
 public:
  // From the next key of `reader` on.
  KeyPlaces(const winnow_rows& rows, const MaskedRows& reader, int64_t dim, int64_t entry_bytes)
      : at_{reader.mask(), reader.data(), reader.signs()},
        dim_(dim),
        row_bytes_(rows.row_bytes),
        sign_row_bytes_(rows.sign_row_bytes),
        entry_bytes_(rows.starts ? entry_bytes : 0),
        sign_bits_(rows.starts && at_.signs ? ~int64_t{0} : 0) {
    if (at_.signs) return;
    at_.signs = kAllPositive;
    sign_row_bytes_ = 0;
  }

  KeyPlace here() const { return at_; }

  // To the next key; count() tells how many entries this one keeps, and is asked where keys differ in it.
  template <class Count>
  void step(const Count& count) {
    at_.mask += dim_ / 8;
    at_.entries += row_bytes_;
    at_.signs += sign_row_bytes_;
    if (!entry_bytes_) return;
    const int64_t kept = count();
    at_.entries += entry_bytes_ * kept;
    at_.signs += sign_bits_ & bytes_of_bits(dim_ - kept);
  }

  // Takes `reader` to the next key, past so many.
  void leave(int64_t keys, MaskedRows& reader) const {
    reader.jump(keys, at_.entries, reader.signs() ? at_.signs : nullptr);
  }

 private:
  KeyPlace at_;
  int64_t dim_, row_bytes_, sign_row_bytes_;  // the latter are zero where keys keep different numbers of entries,
  int64_t entry_bytes_, sign_bits_;           // and these where they do not
};

}  // namespace
}  // namespace winnow
