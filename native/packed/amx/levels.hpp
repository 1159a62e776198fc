// Packed integers as bf16, which holds them exactly, for products in tiles: their scales meet queries or weights.
//
// 32 numbers fill a vector, the even ones first. So every lane has 8 numbers that lie in the even bytes, or in the odd
// ones, of 16 bytes: a shift by words brings them to the right, where a table is asked what they mean. It has an answer
// for whatever bits of other numbers are left beside them.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <type_traits>

#include "packed/amx/numbers.hpp"
#include "packed/format.hpp"
#include "simd/bits.hpp"
#include "simd/element.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Numbers of a vector.
constexpr int kLevels = 32;

// The bits of a whole number of a few bits in bf16.
constexpr uint16_t bf16_bits(int number) {
  const int size = number < 0 ? -number : number;
  int exponent = 0;
  while (size >> (exponent + 1)) ++exponent;
  const int bits = size == 0 ? 0 : (127 + exponent) << 7 | ((size << (7 - exponent)) & 0x7f);
  return static_cast<uint16_t>(number < 0 ? bits | 0x8000 : bits);
}

// What the lowest bits of a word mean.
struct LevelTable {
  alignas(64) uint16_t bits[2 * kLevels];
};

template <int kBits>
constexpr LevelTable level_table(bool is_signed) {
  LevelTable table{};
  for (int word = 0; word < 2 * kLevels; ++word) {
    const int number = word % (1 << kBits);
    table.bits[word] = bf16_bits(is_signed && number >> (kBits - 1) ? number - (1 << kBits) : number);
  }
  return table;
}

// By how much each word is turned to the right.
struct WordTurns {
  alignas(64) uint16_t by[kLevels];
};

// Where numbers of a plane of kBits bits lie in their words, of the first or second half of a block of 64; less `to`, where
// they belong.
template <int kBits>
constexpr WordTurns word_turns(int half, int to) {
  WordTurns turns{};
  for (int word = 0; word < kLevels; ++word) {
    const int lane = word / 8, field = lane % 2;  // of even numbers the first 8, the next 8; the same of odd ones
    const int place = kBits == 1 ? 4 * half + 2 * field + word % 8 / 4 : kBits * (field + (kBits == 2 ? 2 * half : 0));
    turns.by[word] = static_cast<uint16_t>((place + 8 * (lane / 2) + 16 - to) % 16);
  }
  return turns;
}

// The words of half a block, in each of which lie the bits of one number, wherever.
template <int kBits>
inline __m512i plane_words(const uint8_t* plane, int64_t block, int half) {
  if constexpr (kBits == 1) {
    return _mm512_set1_epi64(static_cast<int64_t>(load_word(plane + block * (kBlockBytes / 2))));
  } else {
    const uint8_t* at = plane + block * (kRowNumbers / 8 * kBits) + (kBits == 4 ? half * kBlockBytes : 0);
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  }
}

// Makes numbers of kBits bits into bf16.
template <int kBits>
class Levels {
 public:
  explicit Levels(bool is_signed) {
    unroll<2>([&](auto i) {
      table_[i] = _mm512_load_si512(kTables[is_signed].bits + i * kLevels);
      low_[i] = _mm512_load_si512(kLowTurns[i].by);
      high_[i] = _mm512_load_si512(kHighTurns[i].by);
    });
  }

  // Half a block of 64 numbers of a row of `dim`.
  template <int kHalf>
  __attribute__((always_inline)) __m512i take(const uint8_t* row, int64_t block, int64_t dim) const {
    constexpr int kChoose = 0xca;
    __m512i words = _mm512_srlv_epi16(plane_words<kLow>(row, block, kHalf), low_[kHalf]);
    if constexpr (kLow != kBits) {
      const __m512i high = plane_words<kHigh>(row + dim / 8 * kLow, block, kHalf);
      const __m512i turned = _mm512_shrdv_epi16(high, high, high_[kHalf]);
      words = _mm512_ternarylogic_epi32(_mm512_set1_epi16((1 << kLow) - 1), words, turned, kChoose);
    }
    return kBits == 6 ? _mm512_permutex2var_epi16(table_[0], words, table_[1])
                      : _mm512_permutexvar_epi16(words, table_[0]);
  }

 private:
  static constexpr int kLow = low_bits(kBits), kHigh = kBits == kLow ? 1 : kBits - kLow;
  static constexpr LevelTable kTables[] = {level_table<kBits>(false), level_table<kBits>(true)};
  static constexpr WordTurns kLowTurns[] = {word_turns<kLow>(0, 0), word_turns<kLow>(1, 0)};
  static constexpr WordTurns kHighTurns[] = {word_turns<kHigh>(0, kLow), word_turns<kHigh>(1, kLow)};

  __m512i table_[2], low_[2], high_[2];
};

// body(Count<bits>) for numbers of 6, 4, 3 or 2 bits: tables have no room for those of 8.
template <class Body>
__attribute__((always_inline)) inline void for_levels(int32_t bits, const Body& body) {
  switch (bits) {
    case 6: return body(Count<6>{});
    case 4: return body(Count<4>{});
    case 3: return body(Count<3>{});
    default: return body(Count<2>{});
  }
}

// 32 numbers -> in the order of Levels.
template <class T>
inline void load_dealt(const T* from, Vec& even, Vec& odd) {
  load_pair(from, even, odd);
  if constexpr (!std::is_same_v<T, Bf16>) deal_lanes(even, odd);
}

}  // namespace
}  // namespace winnow
