// Pieces of rows side by side in a vector, and rows that change places with lanes.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "simd/unroll.hpp"

namespace winnow {
namespace {

// load(place) -> 16 bytes, of four places.
template <class Load>
__attribute__((always_inline)) inline __m512i join_places(const char* (&places)[4], const Load& load) {
  // Not broadcasts under a mask, which take turns with the products.
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(load(places[0])), load(places[1]), 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(load(places[2])), load(places[3]), 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// The same of four rows `stride` bytes apart.
template <class Load>
__attribute__((always_inline)) inline __m512i join_rows(const void* first, int64_t stride, const Load& load) {
  const char* at = static_cast<const char*>(first);
  const char* places[4] = {at, at + stride, at + 2 * stride, at + 3 * stride};
  return join_places(places, load);
}

// Sixteen rows `stride` bytes apart. Every fourth has a pointer, from which the next three are reached by what one
// instruction adds up; left alone a compiler keeps the distances of all rows, for which there are not enough registers.
class SixteenRows {
 public:
  __attribute__((always_inline)) SixteenRows(const void* first, int64_t stride) : stride_(stride), three_(3 * stride) {
    fourth_[0] = static_cast<const char*>(first);
    fourth_[1] = hidden(fourth_[0] + 4 * stride);
    fourth_[2] = hidden(fourth_[0] + 8 * stride);
    fourth_[3] = hidden(fourth_[1] + 8 * stride);
  }

  // load(place) -> 16 bytes, of the rows kRow, kRow + 4, kRow + 8 and kRow + 12.
  template <int kRow, class Load>
  __attribute__((always_inline)) __m512i four(const Load& load) const {
    const int64_t ahead = kRow == 3 ? three_ : kRow * stride_;
    const char* places[4] = {fourth_[0] + ahead, fourth_[1] + ahead, fourth_[2] + ahead, fourth_[3] + ahead};
    return join_places(places, load);
  }

 private:
  static const char* hidden(const char* p) {
    asm("" : "+r"(p));
    return p;
  }

  const char* fourth_[4];
  int64_t stride_, three_;
};

// Lane t of the vectors: bytes 4·i .. 4·i + 3 of row t, where rows[k] has 16 bytes of the rows k, k + 4, k + 8 and k + 12.
inline void turn_rows(const __m512i (&rows)[4], __m512i (&lanes)[4]) {
  const __m512i a = _mm512_unpacklo_epi32(rows[0], rows[1]), b = _mm512_unpacklo_epi32(rows[2], rows[3]);
  const __m512i c = _mm512_unpackhi_epi32(rows[0], rows[1]), d = _mm512_unpackhi_epi32(rows[2], rows[3]);
  lanes[0] = _mm512_unpacklo_epi64(a, b);
  lanes[1] = _mm512_unpackhi_epi64(a, b);
  lanes[2] = _mm512_unpacklo_epi64(c, d);
  lanes[3] = _mm512_unpackhi_epi64(c, d);
}

}  // namespace
}  // namespace winnow
