// Sixteen fp32 lanes in one AVX-512 register. Internal linkage throughout, see simd/vec.hpp.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "simd/element.hpp"
#include "simd/unroll.hpp"

namespace winnow {
namespace {

struct Vec {
  static constexpr int width = 16;
  __m512 v;
};

inline Vec broadcast(float x) { return {_mm512_set1_ps(x)}; }

// For a vector from memory that several products meet: a compiler would read it again for each.
inline void load_once(Vec& a) { asm("" : "+v"(a.v)); }

inline Vec widen(Bf16, __m256i bits) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline Vec widen(Fp16, __m256i bits) { return {_mm512_cvtph_ps(bits)}; }

inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
template <class Half>
inline Vec load(const Half* p) {
  return widen(Half{}, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

inline Vec load(const Int8* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline Vec load(const Uint8* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

// The first and the second number of every pair of bf16.
inline Vec lower(Bf16, __m512i pairs) { return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))}; }
inline Vec upper(Bf16, __m512i pairs) {
  return {_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}

// Elements are dealt out alternately, which needs no shuffle: as 32-bit numbers, those with an odd index are in place
// and those with an even one a shift away.
inline void load_pair(const Bf16* p, Vec& a, Vec& b) {
  const __m512i pairs = _mm512_loadu_si512(p);
  a = lower(Bf16{}, pairs);
  b = upper(Bf16{}, pairs);
}

// Four bytes in every lane.
inline __m512i broadcast_four(const void* p) {
  int32_t four;
  std::memcpy(&four, p, sizeof four);
  return _mm512_set1_epi32(four);
}

inline __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }

// The first n < width lanes; the others are zero and their memory is not touched.
inline Vec load_first(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
template <class Half>
inline Vec load_first(const Half* p, int64_t n) {
  return widen(Half{}, _mm256_maskz_loadu_epi16(first_lanes(n), p));
}

inline Vec load_first(const Int8* p, int64_t n) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first_lanes(n), p)))};
}

// Numbers of kBits bits, one from each of the first bytes at p: the kField-th, counted from the lowest bits.
// A table of the values of a number does for its mask, its sign and its conversion.
template <int kBits, bool kSigned>
inline __m512 numbers_table() {
  const __m512i index = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i shifted = _mm512_slli_epi32(index, 32 - kBits);
  return _mm512_cvtepi32_ps(kSigned ? _mm512_srai_epi32(shifted, 32 - kBits) : _mm512_srli_epi32(shifted, 32 - kBits));
}
template <int kBits, bool kSigned, int kField>
inline Vec load_field(const uint8_t* p) {
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm512_permutexvar_ps(_mm512_srli_epi32(bytes, kField * kBits), numbers_table<kBits, kSigned>())};
}

// Numbers of 1 bit from kFirst on, one from each of the 8 bytes at p and then another.
template <bool kSigned, int kFirst>
inline Vec load_flags(const uint8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const __m512i lanes = _mm512_cvtepu8_epi32(_mm_unpacklo_epi64(bytes, _mm_srli_epi16(bytes, 1)));
  return {_mm512_permutexvar_ps(_mm512_srli_epi32(lanes, kFirst / 8), numbers_table<1, kSigned>())};
}

// The first lanes of `values` go, in their order, where `mask` is set; the other lanes are those of `fill`.
inline Vec expand(Vec fill, uint32_t mask, Vec values) {
  return {_mm512_mask_expand_ps(fill.v, static_cast<__mmask16>(mask), values.v)};
}

// Lanes in memory whose bits, as a signed number, are above `bits`.
inline uint32_t lanes_above(const float* p, int32_t bits) {
  return _mm512_cmpgt_epi32_mask(_mm512_loadu_si512(p), _mm512_set1_epi32(bits));
}

// Lanes change sign where `mask` is set.
inline Vec negate_where(uint32_t mask, Vec a) {
  return {_mm512_mask_xor_ps(a.v, static_cast<__mmask16>(mask), a.v, _mm512_set1_ps(-0.0f))};
}

// Lane i is lane i ^ kApart.
template <int kApart>
inline Vec exchange(Vec a) {
  if constexpr (kApart >= 4) return {_mm512_shuffle_f32x4(a.v, a.v, kApart == 8 ? 0x4e : 0xb1)};
  return {_mm512_permute_ps(a.v, kApart == 2 ? 0x4e : 0xb1)};
}

// Of the lanes of a and then b those that `chosen` names, and those that follow each.
inline void deal_lanes(Vec& a, Vec& b, __m512i chosen) {
  const __m512i following = _mm512_add_epi32(chosen, _mm512_set1_epi32(1));
  const __m512 first = a.v, second = b.v;
  a = {_mm512_permutex2var_ps(first, chosen, second)};
  b = {_mm512_permutex2var_ps(first, following, second)};
}

// The lanes of a and then b, dealt out: those with an even index, and the others.
inline void deal_lanes(Vec& a, Vec& b) {
  deal_lanes(a, b, _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30));
}

inline __m256i narrow(Fp16, Vec a) { return _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT); }
// Each lane rounded to bf16, in the upper 16 of its 32 bits.
inline __m512i round_to_bf16(Vec a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000));
}
inline __m256i narrow(Bf16, Vec a) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_to_bf16(a), 16)); }

inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
template <class Half>
inline void store(Half* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(Half{}, a));
}
inline void store_pair(Bf16* p, Vec a, Vec b) {
  const __m512i low = _mm512_srli_epi32(round_to_bf16(a), 16);
  _mm512_storeu_si512(p, _mm512_mask_blend_epi16(0xaaaaaaaau, low, round_to_bf16(b)));
}

inline void store_first(float* p, Vec a, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
template <class Half>
inline void store_first(Half* p, Vec a, int64_t n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), narrow(Half{}, a));
}

inline Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
// max(|a|, |b|)
inline Vec larger_magnitude(Vec a, Vec b) { return {_mm512_range_ps(a.v, b.v, 0x0b)}; }
inline Vec round_nearest(Vec a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT)}; }

// a·2^n for whole n in -126..127.
inline Vec scale_by_power(Vec a, Vec n) { return {_mm512_scalef_ps(a.v, n.v)}; }

// a < b ? yes : no
inline Vec if_less(Vec a, Vec b, Vec yes, Vec no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}

inline float lane_max(Vec a) { return _mm512_reduce_max_ps(a.v); }
inline float lane_sum(Vec a) { return _mm512_reduce_add_ps(a.v); }

// Quarter i of vector k goes to quarter k of vector i. Numbers change places in whole vectors: a processor waits where it
// reads one that was written in pieces.
inline void turn_quarters(__m512i (&vectors)[4]) {
  __m512i even[2], odd[2];
  unroll<2>([&](auto pair) {
    even[pair] = _mm512_shuffle_i32x4(vectors[2 * pair], vectors[2 * pair + 1], 0x88);
    odd[pair] = _mm512_shuffle_i32x4(vectors[2 * pair], vectors[2 * pair + 1], 0xdd);
  });
  vectors[0] = _mm512_shuffle_i32x4(even[0], even[1], 0x88);
  vectors[1] = _mm512_shuffle_i32x4(odd[0], odd[1], 0x88);
  vectors[2] = _mm512_shuffle_i32x4(even[0], even[1], 0xdd);
  vectors[3] = _mm512_shuffle_i32x4(odd[0], odd[1], 0xdd);
}

// Lane i is rows[i], all lanes of it combined. Four rounds of "exchange halves and combine" on all rows together cost
// a third of sixteen horizontal sums; where one shuffle and one blend do, the blend relieves the shuffle port.
template <class Combine>
__attribute__((always_inline)) inline Vec combine_rows(const Vec (&rows)[16], const Combine& combine) {
  __m512 a[8], b[4], c[2];
  unroll<8>([&](auto i) {
    const __m512 x = rows[i].v, y = rows[i + 8].v;
    a[i] = combine(_mm512_shuffle_f32x4(x, y, 0x4e), _mm512_mask_blend_ps(0xff00, x, y));
  });
  const __m512i swap = _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
  unroll<4>([&](auto i) {
    const __m512 x = a[i], y = a[i + 4];
    b[i] = combine(_mm512_permutex2var_ps(x, swap, y), _mm512_mask_blend_ps(0xf0f0, x, y));
  });
  unroll<2>([&](auto i) {
    const __m512 x = b[2 * i], y = b[2 * i + 1];
    c[i] = combine(_mm512_shuffle_ps(x, y, 0x4e), _mm512_mask_blend_ps(0xcccc, x, y));
  });
  return {combine(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd))};
}

inline Vec row_sums(const Vec (&rows)[16]) {
  return combine_rows(rows, [](__m512 x, __m512 y) __attribute__((always_inline)) { return _mm512_add_ps(x, y); });
}
// The same of whole numbers, each lane an int32.
inline __m512i row_sums(const __m512i (&rows)[16]) {
  Vec bits[16];
  unroll<16>([&](auto i) { bits[i] = {_mm512_castsi512_ps(rows[i])}; });
  const auto add = [](__m512 x, __m512 y) __attribute__((always_inline)) {
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_castps_si512(y)));
  };
  return _mm512_castps_si512(combine_rows(bits, add).v);
}
inline Vec row_maxima(const Vec (&rows)[16]) {
  return combine_rows(rows, [](__m512 x, __m512 y) __attribute__((always_inline)) { return _mm512_max_ps(x, y); });
}

}  // namespace
}  // namespace winnow
