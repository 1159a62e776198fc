// Sixteen lanes of whole numbers, each of 32 bits or a pair of 16, for AVX-512, and rows that become columns.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "simd/avx512.hpp"
#include "simd/avx512/transpose.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

struct Whole {
  __m512i v;
};

inline Whole no_whole() { return {_mm512_setzero_si512()}; }

// A vector of pairs, and one pair in every lane.
inline Whole load_pairs(const int16_t* p) { return {_mm512_loadu_si512(p)}; }
inline void store_pairs(int16_t* p, Whole a) { _mm512_storeu_si512(p, a.v); }
inline Whole broadcast_pair(const int16_t* p) { return {broadcast_four(p)}; }

// Adds the products of pairs to a sum: with VNNI in one instruction.
inline void add_pairs(Whole& sum, Whole inputs, Whole weights) {
#ifdef __AVX512VNNI__
  asm("vpdpwssd %2, %1, %0" : "+v"(sum.v) : "v"(inputs.v), "v"(weights.v));
#else
  __m512i products;
  asm("vpmaddwd %[weights], %[inputs], %[products]\n\tvpaddd %[products], %[sum], %[sum]"
      : [sum] "+v"(sum.v), [products] "=&v"(products)
      : [inputs] "v"(inputs.v), [weights] "v"(weights.v));
#endif
}

inline Vec to_fp32(Whole a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline Whole nearest_whole(Vec a) { return {_mm512_cvtps_epi32(a.v)}; }

// The numbers of a and then b, which fit 16 bits, beside each other.
inline void store_beside(int16_t* p, Whole a, Whole b) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(a.v));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + Vec::width), _mm512_cvtsepi32_epi16(b.v));
}

// The same as pairs of a lane of each.
inline Whole join_pairs(Whole a, Whole b) {
  return {_mm512_mask_blend_epi16(0xaaaaaaaau, a.v, _mm512_slli_epi32(b.v, 16))};
}

// The bits of a number without its sign: as whole numbers they are in its order, with NaN above all. And such a number again.
inline Whole size_bits(Vec a) { return {_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffffff))}; }
inline Vec of_size(Whole bits) { return {_mm512_castsi512_ps(bits.v)}; }

inline Whole larger(Whole a, Whole b) { return {_mm512_max_epi32(a.v, b.v)}; }

// The largest lane in every lane.
inline Whole largest_lane(Whole a) { return {_mm512_set1_epi32(_mm512_reduce_max_epi32(a.v))}; }

// As many pairs of bf16 as a vector has, or of whole numbers of 8 bits as 16: the first n numbers at p, or all if there are
// more; the others are zero and their memory is not touched.
inline __mmask32 first_numbers(int64_t n) {
  return n < 2 * Vec::width ? static_cast<__mmask32>((uint64_t{1} << (n < 0 ? 0 : n)) - 1) : ~__mmask32{0};
}
inline Whole read_pairs(const Bf16* p, int64_t n) { return {_mm512_maskz_loadu_epi16(first_numbers(n), p)}; }
inline Whole read_pairs(const Int8* p, int64_t n) {
  return {_mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(first_numbers(n), p))};
}

// The first numbers of pairs of bf16, and the second ones.
inline Vec first_of(Whole pairs) { return lower(Bf16{}, pairs.v); }
inline Vec second_of(Whole pairs) { return upper(Bf16{}, pairs.v); }

// The larger sizes of pairs of bf16, of which `most` are sizes.
inline Whole larger_sizes(Whole most, Whole pairs) {
  return {_mm512_max_epu16(most.v, _mm512_and_si512(pairs.v, _mm512_set1_epi16(0x7fff)))};
}

// Lane j of row i becomes lane i of row j.
inline void transpose(Whole (&rows)[16]) {
  __m512i words[16];
  for (int i = 0; i < 16; ++i) words[i] = rows[i].v;
  transpose(words);
  for (int i = 0; i < 16; ++i) rows[i] = {words[i]};
}
inline void transpose(Vec (&rows)[16]) {
  __m512i words[16];
  for (int i = 0; i < 16; ++i) words[i] = _mm512_castps_si512(rows[i].v);
  transpose(words);
  for (int i = 0; i < 16; ++i) rows[i] = {_mm512_castsi512_ps(words[i])};
}

}  // namespace
}  // namespace winnow
