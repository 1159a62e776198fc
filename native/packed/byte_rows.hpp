// Rows of integers of few bits -> bytes, a few rows at a time. Bytes meet queries and weights as numbers of 8 bits do where
// they lie: they become fp32 in registers, for all queries at once, and a tile takes a fourth of the first-level cache.
#pragma once

#include <cstdint>
#include <cstring>

#include "attend/contract.hpp"
#include "packed/format.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"

namespace winnow {
namespace {

typedef uint8_t SixteenBytes __attribute__((vector_size(16)));
typedef uint16_t EightWords __attribute__((vector_size(16)));
typedef uint64_t TwoLongs __attribute__((vector_size(16)));

// Numbers kFirst .. kFirst + 15 of a plane of kBits bits, without their sign.
template <int kBits, int kFirst>
inline SixteenBytes plane_bytes(const uint8_t* plane) {
  SixteenBytes bytes;
  if constexpr (kBits == 1) {  // one from each of 8 bytes, then the next
    constexpr uint8_t kOne = 1 << kFirst / 8, kNext = kOne << 1;
    constexpr SixteenBytes kBit = {kOne, kOne, kOne, kOne, kOne, kOne, kOne, kOne,
                                   kNext, kNext, kNext, kNext, kNext, kNext, kNext, kNext};
    uint64_t eight;
    std::memcpy(&eight, plane, sizeof eight);
    bytes = reinterpret_cast<SixteenBytes>(TwoLongs{eight, eight});
    return reinterpret_cast<SixteenBytes>((bytes & kBit) == kBit) & 1;
  } else {
    constexpr int kBlock = static_cast<int>(block_numbers(kBits)), kField = kFirst % kBlock / 16;
    std::memcpy(&bytes, plane + kFirst / kBlock * kBlockBytes, sizeof bytes);
    // Of bytes there are no shifts; what comes from the next one is masked.
    constexpr uint8_t kMask = (1 << kBits) - 1;
    return reinterpret_cast<SixteenBytes>(reinterpret_cast<EightWords>(bytes) >> kField * kBits) & kMask;
  }
}

// Those of a row, whose planes begin at `low` and, where there are two, at `high`.
template <int kBits, bool kSigned, int kFirst>
inline SixteenBytes number_bytes(const uint8_t* low, const uint8_t* high) {
  constexpr int kLow = low_bits(kBits);
  SixteenBytes bytes = plane_bytes<kLow, kFirst>(low);
  if constexpr (kBits != kLow) {
    const SixteenBytes upper = plane_bytes<kBits - kLow, kFirst>(high);
    bytes |= reinterpret_cast<SixteenBytes>(reinterpret_cast<EightWords>(upper) << kLow);
  }
  if constexpr (!kSigned) return bytes;
  constexpr uint8_t kSign = 1 << (kBits - 1);
  return (bytes ^ kSign) - kSign;
}

// Consecutive rows of slots of one head, to be read where are_bytes() says so.
class ByteReader {
 public:
  using Number = Int8;

  // From a slot on, `dim` channels each.
  ByteReader(const winnow_rows& rows, int64_t slot, int64_t dim)
      : rows_(rows), dim_(dim), row_(bytes_at(rows.data) + slot * rows.row_bytes) {}

  // The next `count` rows, one after another without gaps.
  void unpack(int64_t count, Int8* out) {
    for_width(rows_.bits, [&](auto bits) {
      constexpr int kBits = decltype(bits)::value;
      rows_.scaling == WINNOW_PER_SLOT ? unpack_rows<kBits, true>(count, out) : unpack_rows<kBits, false>(count, out);
    });
  }

 private:
  template <int kBits, bool kSigned>
  void unpack_rows(int64_t count, Int8* out) {
    constexpr int kLow = low_bits(kBits);
    constexpr int64_t kNumbers = block_numbers(kBits);
    for (int64_t row = 0; row < count; ++row, row_ += rows_.row_bytes) {
      const uint8_t *low = row_, *high = row_ + dim_ * kLow / 8;
      prefetch_row(row_, rows_.row_bytes);
      for (int64_t d = 0; d < dim_; d += kNumbers) {
        unroll<kNumbers / 16>([&](auto i) __attribute__((always_inline)) {
          const SixteenBytes bytes = number_bytes<kBits, kSigned, 16 * i>(low, high);
          std::memcpy(out + 16 * i, &bytes, sizeof bytes);
        });
        out += kNumbers;
        low += kNumbers * kLow / 8;
        high += kNumbers * (kBits - kLow) / 8;
      }
    }
  }

  const winnow_rows& rows_;
  int64_t dim_;
  const uint8_t* row_;
};

// True where rows are integers that fit a signed byte and meet their scales outside of a tile.
inline bool are_bytes(const winnow_rows& rows, int64_t dim) {
  return whole_blocks(rows, dim) && rows.bits < 8 && (rows.scaling == WINNOW_PER_SLOT || rows.scaling == WINNOW_GROUPED);
}

}  // namespace
}  // namespace winnow
