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

// The same for numbers in two planes: low + 2^(bits of the low plane)·high.
template <int kBits, bool kSigned>
inline void unpack_planes(const uint8_t* row, int64_t count, float* out) {
  constexpr int kLow = low_bits(kBits), kHigh = kBits - kLow;
  constexpr int64_t kNumbers = block_numbers(kBits);
  const Vec unit = broadcast(static_cast<float>(1 << kLow));
  const uint8_t* high_row = row + bytes_of_bits(count * kLow);
  alignas(64) float high[kNumbers + kRowSlack];
  for (; count > 0; count -= kNumbers) {
    const int64_t numbers = least(count, kNumbers);
    unpack_numbers<kLow, false>(row, numbers, out);
    unpack_numbers<kHigh, kSigned>(high_row, numbers, high);
    for (int64_t i = 0; i < numbers; i += Vec::width) store(out + i, fma(load(high + i), unit, load(out + i)));
    row += kNumbers * kLow / 8;
    high_row += kNumbers * kHigh / 8;
    out += kNumbers;
  }
}

template <bool kSigned>
inline void unpack_numbers(int32_t bits, const uint8_t* row, int64_t count, float* out) {
  for_width(bits, [&](auto width) { unpack_numbers<decltype(width)::value, kSigned>(row, count, out); });
}

// out[d] = zeros[g] + scales[g]·out[d] for the channels d of scale group g, of `size` channels, a multiple of 32; no
// zeros where they are null. Writes up to the end of the last group.
template <class T>
inline void scale_groups(const T* scales, const T* zeros, int64_t size, int64_t count, float* out) {
  alignas(64) float scale[Vec::width], zero[Vec::width] = {};
  const int64_t groups = divide_up(count, size);
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t lane = group % Vec::width;
    if (lane == 0) {
      store(scale, load_up_to(scales + group, groups - group));
      if (zeros) store(zero, load_up_to(zeros + group, groups - group));
    }
    for (int64_t d = 0; d < size; d += kScaleGroup, out += kScaleGroup) {
      unroll<kScaleGroup / Vec::width>([&](auto i) {
        float* at = out + i * Vec::width;
        store(at, fma(broadcast(scale[lane]), load(at), broadcast(zero[lane])));
      });
    }
  }
}

}  // namespace
}  // namespace winnow
