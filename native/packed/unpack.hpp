// Packed numbers -> fp32.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "packed/format.hpp"
#include "packed/scratch.hpp"
#include "simd/element.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// A row that may be read beyond its end: itself, or a copy where the array ends first. What a mask promises and the
// array does not have is zero.
inline const uint8_t* readable(const uint8_t* row, int64_t bytes, const uint8_t* end, void* copy) {
  const int64_t rest = end - row;
  if (rest >= bytes + kRowSlack) return row;
  const int64_t used = rest < 0 ? 0 : rest < bytes ? rest : bytes;
  if (used > 0) std::memcpy(copy, row, static_cast<size_t>(used));
  std::memset(static_cast<char*>(copy) + used, 0, static_cast<size_t>(bytes - used + kRowSlack));
  return static_cast<const uint8_t*>(copy);
}

// Numbers in two planes, of their low and of their high bits.
template <int kBits, bool kSigned>
inline void unpack_planes(const uint8_t* row, int64_t count, float* out);

// Numbers of kBits bits -> floats, in their order. Writes up to 47 floats too many.
template <int kBits, bool kSigned>
inline void unpack_numbers(const uint8_t* row, int64_t count, float* out) {
  if constexpr (kBits != low_bits(kBits)) {
    unpack_planes<kBits, kSigned>(row, count, out);
  } else if constexpr (kBits == 8) {
    using Number = std::conditional_t<kSigned, Int8, Uint8>;
    for (int64_t i = 0; i < count; i += Vec::width) store(out + i, load(reinterpret_cast<const Number*>(row + i)));
  } else {
    constexpr int kFields = 8 / kBits;
    constexpr int64_t kBytes = block_bytes(kBits);
    // Field by field: what one writes too many, the next overwrites.
    const auto block = [&](int64_t bytes) {
      unroll<kFields>([&](auto field) {
        for (int64_t i = 0; i < bytes; i += Vec::width) {
          store(out + field * bytes + i, load_field<kBits, kSigned, decltype(field)::value>(row + i));
        }
      });
    };
    for (; count >= kFields * kBytes; count -= kFields * kBytes) {
      block(kBytes);
      row += kBytes;
      out += kFields * kBytes;
    }
    if (count > 0) block(divide_up(count, kFields));
  }
}

// Numbers kFirst .. kFirst + width - 1 of whole blocks, of which a plane begins at `row`; that of the high bits, where
// there is one, at `high`.
template <int kBits, bool kSigned, int kFirst>
inline Vec numbers_at(const uint8_t* row, const uint8_t* high) {
  constexpr int kLow = low_bits(kBits), kBlock = static_cast<int>(block_numbers(kBits));
  if constexpr (kBits != kLow) {
    const Vec upper = numbers_at<kBits - kLow, kSigned, kFirst>(high, nullptr);
    return fma(upper, broadcast(static_cast<float>(1 << kLow)), numbers_at<kLow, false, kFirst>(row, nullptr));
  } else if constexpr (kBits == 8) {
    using Number = std::conditional_t<kSigned, Int8, Uint8>;
    return load(reinterpret_cast<const Number*>(row + kFirst));
  } else if constexpr (kBits == 1) {
    return load_flags<kSigned, kFirst>(row);
  } else {
    constexpr int kInside = kFirst % kBlock;
    return load_field<kBits, kSigned, kInside / 16>(row + kFirst / kBlock * kBlockBytes + kInside % 16);
  }
}

// As many numbers as whole blocks of all planes have, and scale groups are no smaller.
template <int kBits>
constexpr int64_t unit_numbers() {
  return block_numbers(kBits) < kScaleGroup ? kScaleGroup : block_numbers(kBits);
}

// Numbers of `units` units, finish(numbers, granule) of those of every granule of 32.
template <int kBits, bool kSigned, class Finish>
inline void unpack_units(const uint8_t* row, const uint8_t* high, int64_t units, float* out, const Finish& finish) {
  constexpr int kLow = low_bits(kBits);
  constexpr int64_t kNumbers = unit_numbers<kBits>();
  for (int64_t granule = 0; units > 0; --units, granule += kNumbers / kScaleGroup) {
    unroll<static_cast<int>(kNumbers / Vec::width)>([&](auto i) {
      constexpr int first = i * Vec::width;
      store(out + first, finish(numbers_at<kBits, kSigned, first>(row, high), granule + first / kScaleGroup));
    });
    row += kNumbers * kLow / 8;
    high += kNumbers * (kBits - kLow) / 8;
    out += kNumbers;
  }
}

// Numbers that fill no unit, whose planes begin at `row` and `high`.
template <int kBits, bool kSigned>
inline void unpack_rest(const uint8_t* row, const uint8_t* high, int64_t count, float* out) {
  constexpr int kLow = low_bits(kBits);
  if constexpr (kBits == kLow) {
    unpack_numbers<kBits, kSigned>(row, count, out);
  } else {
    alignas(64) float upper[unit_numbers<kBits>() + kRowSlack];
    unpack_numbers<kLow, false>(row, count, out);
    unpack_numbers<kBits - kLow, kSigned>(high, count, upper);
    const Vec unit = broadcast(static_cast<float>(1 << kLow));
    for (int64_t i = 0; i < count; i += Vec::width) store(out + i, fma(load(upper + i), unit, load(out + i)));
  }
}

// Any number of them, finish(numbers, granule) of those of every granule.
template <int kBits, bool kSigned, class Finish>
inline void unpack_finished(const uint8_t* row, int64_t count, float* out, const Finish& finish) {
  constexpr int kLow = low_bits(kBits);
  const uint8_t* high = row + bytes_of_bits(count * kLow);
  const int64_t units = count / unit_numbers<kBits>(), whole = units * unit_numbers<kBits>();
  unpack_units<kBits, kSigned>(row, high, units, out, finish);
  if (whole == count) return;
  unpack_rest<kBits, kSigned>(row + whole * kLow / 8, high + whole * (kBits - kLow) / 8, count - whole, out + whole);
  for (int64_t d = whole; d < count; d += Vec::width) store(out + d, finish(load(out + d), d / kScaleGroup));
}

template <int kBits, bool kSigned>
inline void unpack_planes(const uint8_t* row, int64_t count, float* out) {
  unpack_finished<kBits, kSigned>(row, count, out, [](Vec numbers, int64_t) { return numbers; });
}

template <bool kSigned>
inline void unpack_numbers(int32_t bits, const uint8_t* row, int64_t count, float* out) {
  for_width(bits, [&](auto width) { unpack_numbers<decltype(width)::value, kSigned>(row, count, out); });
}

// The same with scales of groups of 32 or 64 channels: scale[g]·number, and zero[g] more where numbers are unsigned.
template <bool kSigned>
inline void unpack_scaled(int32_t bits, const uint8_t* row, int64_t count, const float* scale, const float* zero,
                          int64_t size, float* out) {
  const int shift = size == kScaleGroup ? 0 : 1;  // granules to groups
  const auto finish = [&](Vec numbers, int64_t granule) __attribute__((always_inline)) {
    const Vec factor = broadcast(scale[granule >> shift]);
    if constexpr (kSigned) return factor * numbers;
    return fma(factor, numbers, broadcast(zero[granule >> shift]));
  };
  for_width(bits, [&](auto width) { unpack_finished<decltype(width)::value, kSigned>(row, count, out, finish); });
}

}  // namespace
}  // namespace winnow
