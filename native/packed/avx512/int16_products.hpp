// Products of bytes with numbers in int16, and their sums. Bytes are unsigned.
//
// Processors of Intel multiply bytes four to a lane: an int16 is 256·high + low, halves that are signed bytes. Sums with
// either are kept apart and joined in the end. Those of AMD multiply int16 two to a lane as often as bytes. As many products
// then take half of the sums, so that registers hold those of twice as many queries.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <type_traits>

#include "simd/avx512/pairs.hpp"
#include "simd/avx512/quads.hpp"
#include "simd/processor.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Sums of products with halves -> with int16.
inline __m512i join(__m512i high, __m512i low) { return _mm512_add_epi32(_mm512_slli_epi32(high, 8), low); }

inline __m128i low_half(__m512i int16) { return _mm512_cvtepi32_epi8(int16); }
inline __m128i high_half(__m512i int16) {
  return _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(int16, _mm512_set1_epi32(128)), 8));
}

// Int16 as high halves and, behind those of all numbers that lie together, low ones.
struct Int16Halves {
  static constexpr int kSumsAtOnce = 8;  // that registers hold, of either half
  static constexpr int64_t kStep = 4;    // bytes from four numbers to the next four

  // Four bytes of every lane, as they meet either part of four int16.
  struct Bytes {
    __m512i all;

    Bytes() = default;
    explicit Bytes(__m512i bytes) : all(bytes) {}
  };

  // A part of the next four of kCount int16 that lie together, in every lane.
  template <int kPart, int64_t kCount>
  static __m512i load_part(const int8_t* next) {
    return broadcast_four(next + kPart * kCount);
  }

  // body(Count<query>, Count<part>) for the int16 of kQueries queries, in the best order.
  template <int kQueries, class Body>
  __attribute__((always_inline)) static void for_parts(const Body& body) {
    unroll<2 * kQueries>([&](auto i) __attribute__((always_inline)) { body(Count<i / 2>{}, Count<i % 2>{}); });
  }

  template <int kSums>
  struct Sums {
    __m512i parts[2][kSums];

    template <class Index>
    void start(Index i, __m512i sum) {
      parts[0][i] = _mm512_setzero_si512();
      parts[1][i] = sum;
    }
    template <class Index, class Part>
    void add(Index i, Part part, const Bytes& bytes, __m512i int16) {
      parts[part][i] = add_quads(parts[part][i], bytes.all, int16);
    }
    template <class Index>
    __m512i operator[](Index i) const {
      return join(parts[0][i], parts[1][i]);
    }
  };

  // Sixteen numbers that lie together.
  static void store_16(int8_t* to, __m512i int16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), high_half(int16));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16), low_half(int16));
  }

  // The numbers of a and then b, from the i-th on of kCount that lie together.
  template <int64_t kCount>
  static void store_32(int8_t* to, int64_t i, __m512i a, __m512i b) {
    const __m512i both = _mm512_packs_epi32(a, b);  // four of a, four of b, ...
    const __m512i high = _mm512_srai_epi16(_mm512_add_epi16(both, _mm512_set1_epi16(128)), 8);
    const __m512i low = _mm512_srai_epi16(_mm512_slli_epi16(both, 8), 8);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i halves = _mm512_permutexvar_epi32(order, _mm512_packs_epi16(high, low));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm512_castsi512_si256(halves));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + kCount + i), _mm512_extracti64x4_epi64(halves, 1));
  }
};

// Int16 as they are; of every four the first beside the third, and then the second beside the fourth.
struct Int16Whole {
  static constexpr int kSumsAtOnce = 16;
  static constexpr int64_t kStep = 8;

  struct Bytes {
    __m512i parts[2];

    Bytes() = default;
    explicit Bytes(__m512i bytes) : parts{_mm512_and_si512(bytes, _mm512_set1_epi16(0xff)), _mm512_srli_epi16(bytes, 8)} {}
  };

  template <int kPart, int64_t>
  static __m512i load_part(const int8_t* next) {
    return broadcast_four(next + 4 * kPart);
  }

  // A sum meets the second part long after the first.
  template <int kQueries, class Body>
  __attribute__((always_inline)) static void for_parts(const Body& body) {
    unroll<2 * kQueries>([&](auto i) __attribute__((always_inline)) { body(Count<i % kQueries>{}, Count<i / kQueries>{}); });
  }

  template <int kSums>
  struct Sums {
    __m512i sums[kSums];

    template <class Index>
    void start(Index i, __m512i sum) {
      sums[i] = sum;
    }
    template <class Index, class Part>
    void add(Index i, Part part, const Bytes& bytes, __m512i int16) {
      sums[i] = Int16Pairs::add(sums[i], bytes.parts[part], int16);
    }
    template <class Index>
    __m512i operator[](Index i) const {
      return sums[i];
    }
  };

  static void store_16(int8_t* to, __m512i int16) {
    const __m256i order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    const __m256i numbers = _mm512_cvtepi32_epi16(int16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_shuffle_epi8(numbers, order));
  }

  template <int64_t>
  static void store_32(int8_t* to, int64_t i, __m512i a, __m512i b) {
    store_16(to + 2 * i, a);
    store_16(to + 2 * i + 32, b);
  }
};

// What is faster where bytes meet so many queries, or weights of these: halves up to kMostInHalves, since few sums of whole
// numbers wait for each other.
template <int kQueries, int kMostInHalves>
using Int16For = std::conditional_t<kZen && (kQueries > kMostInHalves), Int16Whole, Int16Halves>;

}  // namespace
}  // namespace winnow
