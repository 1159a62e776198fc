// Eight lanes of whole numbers, each of 32 bits or a pair of 16, for AVX2, and rows that become columns.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "simd/avx2.hpp"
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

}  // namespace
}  // namespace winnow
