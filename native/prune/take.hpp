// Taking what masks keep of rows, and the signs of the rest.
#pragma once

#include <cstdint>
#include <cstring>

#include "prune/contract.hpp"
#include "prune/row.hpp"
#include "simd/bits.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

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
  const int64_t mask_bytes = divide_up(args.dim, 8);
  const int64_t kept_bytes = args.most * static_cast<int64_t>(sizeof(T));
  const int64_t sign_bytes = divide_up(args.dim - args.most, 8);
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
