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

// Numbers of kBits bits -> floats, in their order. Writes up to 47 floats too many.
template <int kBits, bool kSigned>
inline void unpack_numbers(const uint8_t* row, int64_t count, float* out) {
  if constexpr (kBits == 8) {
    using Number = std::conditional_t<kSigned, Int8, Uint8>;
    for (int64_t i = 0; i < count; i += Vec::width) store(out + i, load(reinterpret_cast<const Number*>(row + i)));
  } else {
    constexpr int kFields = 8 / kBits;
    // Field by field: what one writes too many, the next overwrites.
    const auto block = [&](int64_t bytes) {
      unroll<kFields>([&](auto field) {
        for (int64_t i = 0; i < bytes; i += Vec::width) {
          store(out + field * bytes + i, load_field<kBits, kSigned, decltype(field)::value>(row + i));
        }
      });
    };
    for (; count >= kFields * kBlockBytes; count -= kFields * kBlockBytes) {
      block(kBlockBytes);
      row += kBlockBytes;
      out += kFields * kBlockBytes;
    }
    if (count > 0) block(divide_up(count, kFields));
  }
}

template <bool kSigned>
inline void unpack_numbers(int32_t bits, const uint8_t* row, int64_t count, float* out) {
  for_width(bits, [&](auto width) { unpack_numbers<decltype(width)::value, kSigned>(row, count, out); });
}

// out[d] = zeros[g] + scales[g]·out[d] for the channels d of scale group g
template <class T>
inline void scale_groups(const T* scales, const T* zeros, int64_t count, float* out) {
  alignas(64) float scale[Vec::width], zero[Vec::width];
  const int64_t groups = divide_up(count, kScaleGroup);
  for (int64_t group = 0; group < groups; ++group, out += kScaleGroup) {
    const int64_t lane = group % Vec::width;
    if (lane == 0) {
      store(scale, load_up_to(scales + group, groups - group));
      store(zero, load_up_to(zeros + group, groups - group));
    }
    unroll<kScaleGroup / Vec::width>([&](auto i) {
      float* at = out + i * Vec::width;
      store(at, fma(broadcast(scale[lane]), load(at), broadcast(zero[lane])));
    });
  }
}

}  // namespace
}  // namespace winnow
