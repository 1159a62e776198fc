// Eight fp32 lanes in one AVX2 register, with FMA and F16C. Internal linkage throughout, see simd/vec.hpp.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "simd/element.hpp"

namespace winnow {
namespace {

struct Vec {
  static constexpr int width = 8;
  __m256 v;
};

inline Vec broadcast(float x) { return {_mm256_set1_ps(x)}; }

// For a vector from memory that several products meet: a compiler would read it again for each.
inline void load_once(Vec& a) { asm("" : "+x"(a.v)); }

inline Vec widen(Bf16, __m128i bits) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16))};
}
inline Vec widen(Fp16, __m128i bits) { return {_mm256_cvtph_ps(bits)}; }

inline Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
template <class Half>
inline Vec load(const Half* p) {
  return widen(Half{}, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

inline __m128i eight_bytes(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
inline Vec load(const Int8* p) { return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight_bytes(p)))}; }
inline Vec load(const Uint8* p) { return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight_bytes(p)))}; }

// Dealt out alternately, see simd/avx512.hpp.
inline void load_pair(const Bf16* p, Vec& a, Vec& b) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  a = {_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16))};
  b = {_mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
}

inline __m256i first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// The first n < width lanes; the others are zero and their memory is not touched.
inline Vec load_first(const float* p, int64_t n) { return {_mm256_maskload_ps(p, first_lanes(n))}; }
template <class Half>
inline Vec load_first(const Half* p, int64_t n) {
  Half padded[Vec::width] = {};
  std::memcpy(padded, p, static_cast<size_t>(n) * sizeof(Half));
  return load(padded);
}

// Numbers of kBits bits, one from each of the first bytes at p: the kField-th, counted from the lowest bits.
template <int kBits, bool kSigned, int kField>
inline Vec load_field(const uint8_t* p) {
  const __m256i high = _mm256_slli_epi32(_mm256_cvtepu8_epi32(eight_bytes(p)), 32 - kBits - kField * kBits);
  return {_mm256_cvtepi32_ps(kSigned ? _mm256_srai_epi32(high, 32 - kBits) : _mm256_srli_epi32(high, 32 - kBits))};
}

// Numbers of 1 bit from kFirst on, one from each of the 8 bytes at p.
template <bool kSigned, int kFirst>
inline Vec load_flags(const uint8_t* p) {
  return load_field<1, kSigned, kFirst / 8>(p);
}

// Of every mask of eight lanes: the rank among the lanes set of each lane that is set.
struct Ranks {
  uint8_t of[256][8];
};
constexpr Ranks make_ranks() {
  Ranks ranks{};
  for (int mask = 0; mask < 256; ++mask) {
    for (int lane = 0, rank = 0; lane < 8; ++lane) {
      if (mask >> lane & 1) ranks.of[mask][lane] = static_cast<uint8_t>(rank++);
    }
  }
  return ranks;
}
alignas(64) constexpr Ranks kRanks = make_ranks();

inline __m256i lanes_of(uint32_t mask) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(mask)), bit), bit);
}

// The first lanes of `values` go, in their order, where `mask` is set; the other lanes are those of `fill`.
inline Vec expand(Vec fill, uint32_t mask, Vec values) {
  const __m256i from = _mm256_cvtepu8_epi32(eight_bytes(kRanks.of[mask & 255]));
  const __m256 spread = _mm256_permutevar8x32_ps(values.v, from);
  return {_mm256_blendv_ps(fill.v, spread, _mm256_castsi256_ps(lanes_of(mask)))};
}

// Lanes in memory whose bits, as a signed number, are above `bits`.
inline uint32_t lanes_above(const float* p, int32_t bits) {
  const __m256i lanes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i above = _mm256_cmpgt_epi32(lanes, _mm256_set1_epi32(bits));
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(above)));
}

// Lanes change sign where `mask` is set.
inline Vec negate_where(uint32_t mask, Vec a) {
  return {_mm256_xor_ps(a.v, _mm256_and_ps(_mm256_castsi256_ps(lanes_of(mask)), _mm256_set1_ps(-0.0f)))};
}

// Lane i is lane i ^ kApart.
template <int kApart>
inline Vec exchange(Vec a) {
  if constexpr (kApart == 4) return {_mm256_permute2f128_ps(a.v, a.v, 1)};
  return {_mm256_permute_ps(a.v, kApart == 2 ? 0x4e : 0xb1)};
}

// The lanes of a and then b, dealt out: those with an even index, and the others.
inline void deal_lanes(Vec& a, Vec& b) {
  const auto in_order = [](__m256 mixed) {
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(mixed), 0xd8));
  };
  const __m256 even = _mm256_shuffle_ps(a.v, b.v, 0x88), odd = _mm256_shuffle_ps(a.v, b.v, 0xdd);
  a = {in_order(even)};
  b = {in_order(odd)};
}

inline __m128i narrow(Fp16, Vec a) { return _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT); }
// Each lane rounded to bf16, in the upper 16 of its 32 bits.
inline __m256i round_to_bf16(Vec a) {
  const __m256i bits = _mm256_castps_si256(a.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), nan);
}
inline __m128i narrow(Bf16, Vec a) {
  const __m256i high = _mm256_srli_epi32(round_to_bf16(a), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}

inline void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
template <class Half>
inline void store(Half* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(Half{}, a));
}
inline void store_pair(Bf16* p, Vec a, Vec b) {
  const __m256i low = _mm256_srli_epi32(round_to_bf16(a), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_blend_epi16(low, round_to_bf16(b), 0xaa));
}

template <class T>
inline void store_first(T* p, Vec a, int64_t n) {
  T padded[Vec::width];
  store(padded, a);
  std::memcpy(p, padded, static_cast<size_t>(n) * sizeof(T));
}

inline Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Vec round_nearest(Vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }

// a·2^n for whole n in -126..127.
inline Vec scale_by_power(Vec a, Vec n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
  return {_mm256_mul_ps(a.v, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)))};
}

// a < b ? yes : no
inline Vec if_less(Vec a, Vec b, Vec yes, Vec no) {
  return {_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}

inline float lane_max(Vec a) {
  const __m128 x = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 y = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}

inline float lane_sum(Vec a) {
  const __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 y = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

// Lane i is the sum of rows[i].
inline Vec row_sums(const Vec (&rows)[8]) {
  const auto four = [](Vec a, Vec b, Vec c, Vec d) {
    return _mm256_hadd_ps(_mm256_hadd_ps(a.v, b.v), _mm256_hadd_ps(c.v, d.v));
  };
  const __m256 low = four(rows[0], rows[1], rows[2], rows[3]);
  const __m256 high = four(rows[4], rows[5], rows[6], rows[7]);
  return {_mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x21), _mm256_blend_ps(low, high, 0xf0))};
}

}  // namespace
}  // namespace winnow
