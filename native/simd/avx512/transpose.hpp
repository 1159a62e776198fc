// Rows of words that become columns, for AVX-512.
#pragma once

#include <immintrin.h>

#include "simd/vec.hpp"

namespace winnow {
namespace {

// 16 rows of 16 words -> 16 columns.
inline void transpose(__m512i (&rows)[16]) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  // Quarter k of b[4·i + j] has column 4·k + j of rows 4·i .. 4·i + 3.
  for (int j = 0; j < 4; ++j) {
    __m512i columns[4] = {b[j], b[4 + j], b[8 + j], b[12 + j]};
    turn_quarters(columns);
    for (int k = 0; k < 4; ++k) rows[4 * k + j] = columns[k];
  }
}

}  // namespace
}  // namespace winnow
