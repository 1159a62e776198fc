// Packed integers as 16-bit words, for AVX-512. Include after vec_avx512.hpp.
//
// 32 bytes are loaded at once: two blocks of 4 or 2 bits (see bits.py). Word i of field f of load l is number
// (2·l + i / 16)·16·fields + 16·f + i % 16: sixteen neighbours stay together. Signed numbers of 4 and 2 bits are
// taken as unsigned ones, which are larger by kOffset.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "unroll.hpp"

namespace winnow {
namespace {

constexpr int64_t kLoadBytes = 32;
constexpr int kWords = 32;
constexpr float kMostWord = 32767.0f;

template <int kBits, bool kSigned>
struct Words {
  static constexpr int kFields = 8 / kBits;
  static constexpr int kOffset = kSigned && kBits < 8 ? 1 << (kBits - 1) : 0;

  static __m512i load(const uint8_t* p) {
    const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    if constexpr (kBits == 8) return kSigned ? _mm512_cvtepi8_epi16(bytes) : _mm512_cvtepu8_epi16(bytes);
    const __m512i words = _mm512_cvtepu8_epi16(bytes);
    constexpr int kFlip = kBits == 4 ? 0x88 : 0xaa;
    return kSigned ? _mm512_xor_si512(words, _mm512_set1_epi16(kFlip)) : words;
  }

  template <int kField>
  static __m512i field(__m512i words) {
    if constexpr (kBits == 8) return words;
    const __m512i shifted = _mm512_srli_epi16(words, kField * kBits);
    return kField + 1 == kFields ? shifted : _mm512_and_si512(shifted, _mm512_set1_epi16((1 << kBits) - 1));
  }

  // Where the sixteen numbers from `first` on are among the words.
  static int64_t place(int64_t first) {
    const int64_t block = first / (16 * kFields), field = first / 16 % kFields;
    return (block / 2 * kFields + field) * kWords + block % 2 * 16;
  }
};

// acc[i] + a[2·i]·b[2·i] + a[2·i + 1]·b[2·i + 1], in words. The intrinsic makes GCC copy every accumulator twice.
inline __m512i add_products(__m512i acc, __m512i a, __m512i b) {
  asm("vpdpwssd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
  return acc;
}

// Sixteen floats as words, given a factor that makes the largest kMostWord.
inline void store_words(int16_t* p, Vec numbers, Vec factor) {
  const __m512i whole = _mm512_cvtps_epi32((numbers * factor).v);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(whole));
}

inline Vec magnitude(Vec a) { return {_mm512_abs_ps(a.v)}; }

// Numbers that are all smaller than this count as zeros: the inverse of their step could be infinite. Weights are
// relative to 1.
constexpr float kLeastNumber = 1e-30f;

// What a word stands for, where the largest number is `most`; and the inverse, where there is one.
inline float step_of(float most) { return most / kMostWord; }
inline float steps_of(float most) { return most > kLeastNumber ? kMostWord / most : 0.0f; }

}  // namespace
}  // namespace winnow
