// Dot products in int8, for AVX-512: packed integers as bytes, with queries or weights in int16 as two bytes each.
//
// Field f of a block of 16 bytes (see bits.py) are the numbers 16·f .. 16·f + 15 of the block. Numbers are taken as
// unsigned ones, since the machine multiplies unsigned bytes with signed ones: signed numbers are larger by kOffset.
//
// An int16 is 256·high + low, halves that are signed bytes. Sums with either are kept apart and joined in the end.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "packed/format.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

constexpr float kMostInt16 = 127 * 256 + 127;

template <int kBits, bool kSigned>
struct Numbers {
  static constexpr int kFields = 8 / kBits;
  static constexpr int kOffset = kSigned ? 1 << (kBits - 1) : 0;

  // All numbers of some bytes as unsigned ones, and one field of them. Not by a single vpternlog, which would take
  // turns with the products.
  static __m512i lift(__m512i bytes) {
    constexpr int kSigns = kBits == 8 ? 0x80 : kBits == 4 ? 0x88 : 0xaa;
    return kSigned ? _mm512_xor_si512(bytes, _mm512_set1_epi8(static_cast<char>(kSigns))) : bytes;
  }

  template <int kField>
  static __m512i field(__m512i lifted) {
    if constexpr (kBits == 8) return lifted;
    const __m512i mask = _mm512_set1_epi8((1 << kBits) - 1);
    return _mm512_and_si512(_mm512_srli_epi16(lifted, kField * kBits), mask);
  }
};

// The block at p and three more, `stride` bytes apart.
inline __m512i load_blocks(const uint8_t* p, int64_t stride) {
  const auto block = [&](int64_t i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i * stride)); };
  // Not broadcasts under a mask, which take turns with the products.
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(block(0)), block(1), 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(block(2)), block(3), 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// A line of integers to come, where `ahead` is kPrefetchBytes ahead. They are read faster than a line is on its way from
// memory into the first-level cache, which waits for a few lines only: it is fetched into the second long before, and
// from there into the first.
inline void prefetch_numbers(const char* ahead) {
  prefetch_for_later(ahead + kPrefetchBytes, 1);
  prefetch(ahead - kPrefetchBytes / 3);
}

// acc[i] + the sum of the products of numbers and halves over the four bytes of lane i. The intrinsic makes GCC copy
// every accumulator twice.
inline __m512i add_products(__m512i acc, __m512i numbers, __m512i halves) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(numbers), "v"(halves));
  return acc;
}

// Four bytes in every lane.
inline __m512i broadcast_four(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, sizeof four);
  return _mm512_set1_epi32(four);
}

// Sums of products with halves -> with int16.
inline __m512i join(__m512i high, __m512i low) { return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low); }

// Sixteen floats as int16, given a factor that makes the largest kMostInt16.
inline __m512i to_int16(Vec numbers, Vec factor) { return _mm512_cvtps_epi32((numbers * factor).v); }

inline __m128i low_half(__m512i int16) { return _mm512_cvtepi32_epi8(int16); }
inline __m128i high_half(__m512i int16) {
  return _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(int16, _mm512_set1_epi32(128)), 8));
}

// Numbers that are all smaller than this count as zeros: the inverse of their scale could be infinite. Weights are
// relative to 1.
constexpr float kLeastNumber = 1e-30f;

// The number that 1 in int16 stands for, where the largest number is `most`; and its inverse, where there is one.
inline Vec int16_scale(Vec most) { return most * broadcast(1.0f / kMostInt16); }
inline Vec inverse_int16_scale(Vec most) {
  return if_less(broadcast(kLeastNumber), most, broadcast(kMostInt16) / most, broadcast(0.0f));
}

}  // namespace
}  // namespace winnow
