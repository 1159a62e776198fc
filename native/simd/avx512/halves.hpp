// Pairs of 16-bit numbers, for AVX-512.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace winnow {
namespace {

// 1 in bf16, twice which adds up pairs.
constexpr int16_t kOneInBf16 = 0x3f80;

// Numbers of the lower half beside those of the upper one.
inline __m512i pair_halves(__m512i numbers) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5,
                                         20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, numbers);
}

}  // namespace
}  // namespace winnow
