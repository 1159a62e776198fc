// Packed integers of a row as bytes, 64 at a time, for products in tiles.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "packed/avx512/blocks_of_64.hpp"
#include "packed/format.hpp"
#include "simd/unroll.hpp"

namespace winnow {
namespace {

// Which 16 of 64 numbers are the 16 bytes of a lane.
template <int kBits>
constexpr int unit_of(int lane) {
  return low_bits(kBits) == 4 ? lane % 2 * 2 + lane / 2 : lane;
}

// The same number in all 16-bit numbers of a lane.
inline __m512i lanes_of_16(int a, int b, int c, int d) {
  const auto twice = [](int i) { return i << 16 | i; };
  const int lanes[4] = {twice(a), twice(b), twice(c), twice(d)};
  return _mm512_setr_epi32(lanes[0], lanes[0], lanes[0], lanes[0], lanes[1], lanes[1], lanes[1], lanes[1], lanes[2],
                           lanes[2], lanes[2], lanes[2], lanes[3], lanes[3], lanes[3], lanes[3]);
}

// What is added to signed numbers of so many bits to make unsigned ones; flipping the same bit does it.
constexpr int offset_of(int bits) { return 1 << (bits - 1); }

// The low plane of a block of 64 numbers, those of a lane at the right end of their bytes.
template <int kBits>
inline __m512i low_plane(const uint8_t* row, int64_t block) {
  const uint8_t* at = row + block * (kRowNumbers / 8 * low_bits(kBits));
  if constexpr (kBits == 8) return _mm512_loadu_si512(at);
  if constexpr (low_bits(kBits) == 4) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    return _mm512_srlv_epi16(_mm512_broadcast_i64x4(bytes), lanes_of_16(0, 0, 4, 4));
  } else {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    return _mm512_srlv_epi16(_mm512_broadcast_i32x4(bytes), lanes_of_16(0, 2, 4, 6));
  }
}

// Bits of the high plane of the same numbers, where they belong in their bytes.
template <int kBits>
inline __m512i high_plane(const uint8_t* row, int64_t block, int64_t dim) {
  const uint8_t* plane = row + dim / 8 * low_bits(kBits);
  if constexpr (kBits == 6) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(plane + block * kBlockBytes));
    const __m512i turns = _mm512_setr_epi32(4, 4, 4, 4, 0, 0, 0, 0, 2, 2, 2, 2, 30, 30, 30, 30);
    return _mm512_rolv_epi32(_mm512_broadcast_i32x4(bytes), turns);
  } else {
    int64_t bytes;
    std::memcpy(&bytes, plane + block * (kBlockBytes / 2), sizeof bytes);
    return _mm512_rolv_epi64(_mm512_set1_epi64(bytes), _mm512_setr_epi64(2, 1, 0, 63, 62, 61, 60, 59));
  }
}

// The 64 numbers of a block of a row of `dim`, lane by lane as unit_of says; `flip` is the bit that is flipped, in every
// byte, or zero.
template <int kBits>
inline __m512i unpack_64(const uint8_t* row, int64_t block, int64_t dim, __m512i flip) {
  constexpr int kAndThenXor = 0x6a, kChoose = 0xca;
  __m512i numbers = low_plane<kBits>(row, block);
  if constexpr (kBits == 8) return _mm512_xor_si512(numbers, flip);
  if constexpr (low_bits(kBits) != kBits) {
    const __m512i low = every_byte((1 << low_bits(kBits)) - 1);
    numbers = _mm512_ternarylogic_epi32(low, numbers, high_plane<kBits>(row, block, dim), kChoose);
  }
  return _mm512_ternarylogic_epi32(numbers, every_byte((1 << kBits) - 1), flip, kAndThenXor);
}

}  // namespace
}  // namespace winnow
