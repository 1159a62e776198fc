// Numbers of a winnow_dtype as doubles, by the definition of their bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "bytes.hpp"
#include "winnow_native.h"

inline int64_t bytes_of(int32_t dtype) { return dtype == WINNOW_F32 ? 4 : 2; }

// Bits of the mantissa that are stored.
inline int mantissa_bits(int32_t dtype) { return dtype == WINNOW_F32 ? 23 : dtype == WINNOW_BF16 ? 7 : 10; }

inline uint32_t bits_at(int32_t dtype, const void* data, int64_t index) {
  uint32_t bits = 0;
  const int64_t bytes = bytes_of(dtype);
  for (int64_t i = 0; i < bytes; ++i) {
    bits |= static_cast<uint32_t>(static_cast<const uint8_t*>(data)[index * bytes + i]) << (8 * i);
  }
  return bits;
}

inline double number_at(int32_t dtype, const void* data, int64_t index) {
  const uint32_t bits = bits_at(dtype, data, index);
  const int mantissa = mantissa_bits(dtype), bias = dtype == WINNOW_F16 ? 15 : 127;
  const uint32_t exponents = 2 * bias + 1, exponent = bits >> mantissa & exponents;
  const double sign = bits >> (8 * bytes_of(dtype) - 1) ? -1 : 1;
  const double fraction = std::ldexp(bits & ((1u << mantissa) - 1), -mantissa);
  if (exponent == exponents) return fraction ? NAN : sign * INFINITY;
  if (!exponent) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1 + fraction, static_cast<int>(exponent) - bias);
}

inline std::vector<double> numbers_at(int32_t dtype, const void* data, int64_t count) {
  std::vector<double> found(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) found[i] = number_at(dtype, data, i);
  return found;
}

// Positive numbers from 2^exponent to less than twice that.
inline void* numbers_of_size(Arrays& arrays, int32_t dtype, int64_t count, int exponent) {
  const int64_t bytes = bytes_of(dtype);
  const int mantissa = mantissa_bits(dtype), bias = dtype == WINNOW_F16 ? 15 : 127;
  uint8_t* made = arrays.noise(count * bytes);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t fraction = bits_at(dtype, made, i) & ((1u << mantissa) - 1);
    const uint32_t bits = static_cast<uint32_t>(bias + exponent) << mantissa | fraction;
    for (int64_t byte = 0; byte < bytes; ++byte) made[i * bytes + byte] = static_cast<uint8_t>(bits >> (8 * byte));
  }
  return made;
}
