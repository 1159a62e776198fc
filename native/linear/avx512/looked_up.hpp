// A weight of 8 bits whose channels meet inputs in pairs of bf16, for AVX-512 BF16 and VBMI: bytes of numbers are looked up,
// which takes fewer instructions than converting them.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "simd/avx512/pairs.hpp"
#include "simd/element.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Bytes of whole numbers from 1 to 128 in bf16, where 128 is the first: those of a number are looked up by its size.
struct BytesOfSizes {
  alignas(64) uint8_t lower[128], upper[128];

  constexpr BytesOfSizes() : lower{}, upper{0x43} {
    for (int size = 1, exponent = 127, power = 1; size < 128; ++size) {
      if (size == 2 * power) ++exponent, power *= 2;
      const int bits = exponent * 128 + (size - power) * 128 / power;
      lower[size] = static_cast<uint8_t>(bits);
      upper[size] = static_cast<uint8_t>(bits >> 8);
    }
  }
};

// Weights of 8 bits, a line at a time. Bytes of bf16 are looked up for all of it, and meet within each fourth of a vector: one
// vector gets the lower eight channels of every fourth, the other the upper eight.
struct LookedUpChannels {
  static constexpr int64_t kTogether = 4 * Vec::width;
  static constexpr int kLines = 4;
  struct Numbers {
    __m512i lower, upper;
  };

  static Numbers input(const Bf16* p) { return dealt(_mm512_loadu_si512(p), _mm512_loadu_si512(p + kTogether / 2)); }
  static Numbers weight(const Int8* p) { return looked_up(_mm512_loadu_si512(p)); }

  static Numbers input_up_to(const Bf16* p, int64_t n) {
    if (n >= kTogether) return input(p);
    const auto mask = first(n);
    return dealt(_mm512_maskz_loadu_epi16(static_cast<__mmask32>(mask), p),
                 _mm512_maskz_loadu_epi16(static_cast<__mmask32>(mask >> 32), p + kTogether / 2));
  }
  static Numbers weight_up_to(const Int8* p, int64_t n) {
    return n >= kTogether ? weight(p) : looked_up(_mm512_maskz_loadu_epi8(first(n), p));
  }

  static Vec add(Vec sum, const Numbers& weight, const Numbers& input) {
    return {Bf16Pairs::add(Bf16Pairs::add(sum.v, weight.lower, input.lower), weight.upper, input.upper)};
  }

 private:
  static __mmask64 first(int64_t n) { return (__mmask64{1} << n) - 1; }

  static Numbers dealt(__m512i a, __m512i b) {
    return {_mm512_shuffle_i64x2(a, b, _MM_SHUFFLE(2, 0, 2, 0)), _mm512_shuffle_i64x2(a, b, _MM_SHUFFLE(3, 1, 3, 1))};
  }

  static Numbers looked_up(__m512i numbers) {
    static constexpr BytesOfSizes bytes;
    const auto all_of = [&](const uint8_t(&of)[128], __mmask64 wanted, __m512i sizes) {
      return _mm512_maskz_permutex2var_epi8(wanted, _mm512_load_si512(of), sizes, _mm512_load_si512(of + 64));
    };
    // 128 has the place of 0, whose bytes are zeros.
    const __m512i sizes = _mm512_abs_epi8(numbers);
    const __m512i lower = all_of(bytes.lower, ~__mmask64{0}, sizes);
    const __m512i upper = all_of(bytes.upper, _mm512_test_epi8_mask(numbers, numbers), sizes);
    constexpr int kFirstOrSignOfSecond = 0xf8;  // a | (b & c)
    const __m512i with_sign = _mm512_ternarylogic_epi64(upper, numbers, _mm512_set1_epi8(-128), kFirstOrSignOfSecond);
    return {_mm512_unpacklo_epi8(lower, with_sign), _mm512_unpackhi_epi8(lower, with_sign)};
  }
};

}  // namespace
}  // namespace winnow
