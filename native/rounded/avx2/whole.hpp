// Eight lanes of whole numbers, each of 32 bits or a pair of 16, for AVX2, and rows that become columns.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "simd/avx2.hpp"
#include "simd/element.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

struct Whole {
  __m256i v;
};

inline Whole no_whole() { return {_mm256_setzero_si256()}; }

// A vector of pairs, and one pair in every lane.
inline Whole load_pairs(const int16_t* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
inline void store_pairs(int16_t* p, Whole a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v); }
inline Whole broadcast_pair(const int16_t* p) {
  int32_t both;
  std::memcpy(&both, p, sizeof both);
  return {_mm256_set1_epi32(both)};
}

// Adds the products of pairs to a sum. In one piece: a compiler would begin all products before it adds the first, and spill.
inline void add_pairs(Whole& sum, Whole inputs, Whole weights) {
  __m256i products;
  asm("vpmaddwd %[weights], %[inputs], %[products]\n\tvpaddd %[products], %[sum], %[sum]"
      : [sum] "+x"(sum.v), [products] "=&x"(products)
      : [inputs] "x"(inputs.v), [weights] "x"(weights.v));
}

inline Vec to_fp32(Whole a) { return {_mm256_cvtepi32_ps(a.v)}; }
inline Whole nearest_whole(Vec a) { return {_mm256_cvtps_epi32(a.v)}; }

// The numbers of a and then b, which fit 16 bits, beside each other.
inline void store_beside(int16_t* p, Whole a, Whole b) {
  const __m256i mixed = _mm256_packs_epi32(a.v, b.v);
  store_pairs(p, {_mm256_permute4x64_epi64(mixed, 0xd8)});
}

// The same as pairs of a lane of each.
inline Whole join_pairs(Whole a, Whole b) { return {_mm256_blend_epi16(a.v, _mm256_slli_epi32(b.v, 16), 0xaa)}; }

// The bits of a number without its sign: as whole numbers they are in its order, with NaN above all. And such a number again.
inline Whole size_bits(Vec a) { return {_mm256_and_si256(_mm256_castps_si256(a.v), _mm256_set1_epi32(0x7fffffff))}; }
inline Vec of_size(Whole bits) { return {_mm256_castsi256_ps(bits.v)}; }

inline Whole larger(Whole a, Whole b) { return {_mm256_max_epi32(a.v, b.v)}; }

// The largest lane in every lane.
inline Whole largest_lane(Whole a) {
  __m128i most = _mm_max_epi32(_mm256_castsi256_si128(a.v), _mm256_extracti128_si256(a.v, 1));
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0x4e));
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0xb1));
  return {_mm256_broadcastd_epi32(most)};
}

// As many pairs of bf16 as a vector has, or of whole numbers of 8 bits as 16: the first n numbers at p, or all if there are
// more; the others are zero and their memory is not touched.
inline Whole read_pairs(const Bf16* p, int64_t n) {
  if (n >= 2 * Vec::width) return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
  Bf16 padded[2 * Vec::width] = {};
  if (n > 0) std::memcpy(padded, p, static_cast<size_t>(n) * sizeof(Bf16));
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(padded))};
}
inline Whole read_pairs(const Int8* p, int64_t n) {
  if (n >= 2 * Vec::width) return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  Int8 padded[2 * Vec::width] = {};
  if (n > 0) std::memcpy(padded, p, static_cast<size_t>(n));
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(padded)))};
}

// The first numbers of pairs of bf16, and the second ones.
inline Vec first_of(Whole pairs) { return {_mm256_castsi256_ps(_mm256_slli_epi32(pairs.v, 16))}; }
inline Vec second_of(Whole pairs) {
  return {_mm256_castsi256_ps(_mm256_and_si256(pairs.v, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
}

// The larger sizes of pairs of bf16, of which `most` are sizes.
inline Whole larger_sizes(Whole most, Whole pairs) {
  return {_mm256_max_epu16(most.v, _mm256_and_si256(pairs.v, _mm256_set1_epi16(0x7fff)))};
}

// Lane j of row i becomes lane i of row j.
inline void transpose(Vec (&rows)[8]) {
  Vec pairs[8], fours[8];
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = {_mm256_unpacklo_ps(rows[i].v, rows[i + 1].v)};
    pairs[i + 1] = {_mm256_unpackhi_ps(rows[i].v, rows[i + 1].v)};
  }
  for (int i = 0; i < 8; i += 4) {
    for (int half = 0; half < 2; ++half) {
      fours[i + 2 * half] = {_mm256_shuffle_ps(pairs[i + half].v, pairs[i + half + 2].v, 0x44)};
      fours[i + 2 * half + 1] = {_mm256_shuffle_ps(pairs[i + half].v, pairs[i + half + 2].v, 0xee)};
    }
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = {_mm256_permute2f128_ps(fours[i].v, fours[i + 4].v, 0x20)};
    rows[i + 4] = {_mm256_permute2f128_ps(fours[i].v, fours[i + 4].v, 0x31)};
  }
}
inline void transpose(Whole (&rows)[8]) {
  Vec lanes[8];
  for (int i = 0; i < 8; ++i) lanes[i] = {_mm256_castsi256_ps(rows[i].v)};
  transpose(lanes);
  for (int i = 0; i < 8; ++i) rows[i] = {_mm256_castps_si256(lanes[i].v)};
}

}  // namespace
}  // namespace winnow
