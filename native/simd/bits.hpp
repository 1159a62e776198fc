// Bits of masks. Internal linkage: compiled for an instruction set, see simd/vec.hpp.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd/unroll.hpp"
#if defined(__BMI2__)
#include <immintrin.h>
#endif

namespace winnow {
namespace {

// Bytes in memory as a number, the first lowest; packed rows are only read on machines where that is a load.
inline uint64_t load_word(const uint8_t* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

inline int64_t count_bits(uint64_t bits) { return __builtin_popcountll(bits); }

inline uint64_t first_bits(int64_t n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

// 64 bits from bit `first` of the memory at p on; reads nine bytes.
inline uint64_t bits_at(const uint8_t* p, int64_t first) {
  const uint8_t* from = p + first / 8;
  const int64_t shift = first % 8;
  // Two shifts do nothing where one would be by 64 bits: a branch would be guessed wrong too often.
  return load_word(from) >> shift | uint64_t{from[8]} << 1 << (63 - shift);
}

// The first bits of `source` go, in their order, where `mask` is set.
inline uint64_t deposit(uint64_t source, uint64_t mask) {
#if defined(__BMI2__)
  return _pdep_u64(source, mask);
#else
  uint64_t result = 0;
  for (; mask; mask &= mask - 1, source >>= 1) {
    if (source & 1) result |= mask & (~mask + 1);
  }
  return result;
#endif
}

// The inverse: the bits of `source` where `mask` is set, in their order from the lowest on.
inline uint64_t extract(uint64_t source, uint64_t mask) {
#if defined(__BMI2__)
  return _pext_u64(source, mask);
#else
  uint64_t result = 0;
  for (int place = 0; mask; mask &= mask - 1, ++place) {
    if (source & mask & (~mask + 1)) result |= uint64_t{1} << place;
  }
  return result;
#endif
}

}  // namespace
}  // namespace winnow
