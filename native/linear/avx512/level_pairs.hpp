// Levels of a weight of 4, 5 or 6 bits as bf16, which holds what they are above the one for zero: of two inputs beside each
// other, in a lane of a product, whose outputs are those of every vector of sums.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "linear/contract.hpp"
#include "linear/avx512/levels.hpp"
#include "simd/avx512/halves.hpp"
#include "simd/unroll.hpp"

namespace winnow {
namespace {

// Vectors of sums for the outputs of a row: even ones of the first half, of the second, then odd ones.
constexpr int kLevelSums = 4;

// What levels stand for, as bf16. Of 4 bits it is there twice: instructions look at five bits, or six, of a word.
template <int kBits>
struct LevelNumbers {
  static constexpr int kCount = kBits == 6 ? 64 : 32;
  alignas(64) uint16_t numbers[kCount];

  constexpr LevelNumbers() : numbers{} {
    for (int i = 0; i < kCount; ++i) numbers[i] = in_bf16(i % (1 << kBits) - kZeroLevel<kBits>);
  }

 private:
  // A whole number that has no more bits than bf16 keeps.
  static constexpr uint16_t in_bf16(int number) {
    if (number == 0) return 0;
    const int sign = number < 0 ? 0x8000 : 0, size = number < 0 ? -number : number;
    int exponent = 0;
    while (size >> (exponent + 1)) ++exponent;
    return static_cast<uint16_t>(sign + (127 + exponent) * 128 + ((size << 7 >> exponent) - 128));
  }
};

// Words of which the lowest bits are levels -> numbers.
template <int kBits>
inline __m512i look_up(__m512i levels) {
  static constexpr LevelNumbers<kBits> table;
  const __m512i first = _mm512_load_si512(table.numbers);
  if constexpr (kBits < 6) return _mm512_permutexvar_epi16(levels, first);
  return _mm512_permutex2var_epi16(first, levels, _mm512_load_si512(table.numbers + 32));
}

// The numbers of two inputs of a block of outputs.
template <int kBits>
class LevelPairs {
 public:
  // The low bits of both inputs, and the line of high bits that they share, in which they have a place.
  template <int kPlace>
  LevelPairs(const uint8_t* low, const uint8_t* high, Count<kPlace>) {
    const __m512i words = pair_halves(_mm512_loadu_si512(low));
    if constexpr (kBits == 4) {
      halves_[0] = words;
    } else {
      const __m512i bits = moved<high_bit(kPlace)>(_mm512_loadu_si512(high));
      halves_[0] = joined(words, bits);
      halves_[1] = joined(_mm512_srli_epi16(words, 4), _mm512_srli_epi16(bits, kHighBits<kBits>));
    }
  }

  // Those of a vector of sums.
  template <int kSum>
  __m512i numbers() const {
    if constexpr (kBits == 4) return look_up<kBits>(_mm512_srli_epi16(halves_[0], 4 * kSum));
    return look_up<kBits>(_mm512_srli_epi16(halves_[kSum % 2], 8 * (kSum / 2)));
  }

 private:
  // Bits from kFrom of each byte on move to where they are above four others.
  template <int kFrom>
  static __m512i moved(__m512i bits) {
    if constexpr (kFrom > 4) return _mm512_srli_epi16(bits, kFrom - 4);
    if constexpr (kFrom < 4) return _mm512_slli_epi16(bits, 4 - kFrom);
    return bits;
  }

  static __m512i joined(__m512i low, __m512i high) {
    constexpr int kFirstChooses = 0xca;
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8(15), low, high, kFirstChooses);
  }

  __m512i halves_[kBits == 4 ? 1 : 2];  // Of 4 bits all; else those of a half of the outputs, a level in each byte.
};

// Calls body(pairs, i) for all pairs of inputs that share a scale, the first of which is the i-th. What comes after them in the
// weight is asked for if `asks`.
template <int kBits, class Body>
__attribute__((always_inline)) inline void for_level_pairs(LevelPlanes<kBits> planes, bool asks, const Body& body) {
  // GCC would unroll it for 6 bits, and put all requests first.
#pragma GCC unroll 1
  for (int64_t i = 0; i < kGroupInputs<kBits>; i += 2 * kSharing<kBits>, planes.high += kLine) {
    if (asks && kBits > 4) planes.ask_ahead();
    unroll<kSharing<kBits>>([&](auto place) __attribute__((always_inline)) {
      if (asks) planes.ask_ahead();
      const LevelPairs<kBits> pairs(planes.low, planes.high, place);
      planes.low += kLine;
      body(pairs, i + 2 * place);
    });
  }
}

}  // namespace
}  // namespace winnow
