// Products of kept entries with the channels of queries that they belong to. A lane is a token, and holds two of its entries;
// the two channels of a query are looked up beside each other, in a table of 64 that two vectors are. Each pair of entries
// takes a lookup and a product, where keys that are written out take a product for every pair of channels.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "dense/avx512/pair_keys.hpp"
#include "packed/avx512/blocks_of_64.hpp"
#include "packed/format.hpp"
#include "simd/avx512/pairs.hpp"
#include "simd/avx512/sixteen_rows.hpp"
#include "simd/bits.hpp"
#include "simd/element.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Most entries of 64 channels that are looked up.
constexpr int64_t kMostLookedUp = 32;

// Kept entries in 16 bits, side by side, with zeros behind; their channels, counted from the first of the 64; a bit for each.
// In the place of 64 numbers.
struct NumbersWithChannels {
  static constexpr int64_t kBytes = 2, kChannelsAt = 64, kBitsAt = 96;

  static void expand(__mmask64 mask, int64_t, const uint8_t* entries, uint8_t* to) {
    alignas(64) static constexpr uint8_t kChannels[64] = {
        0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
        22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
        44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
    const uint32_t bits = _bzhi_u32(~0u, static_cast<uint32_t>(count_bits(_cvtmask64_u64(mask))));
    _mm512_store_si512(to, _mm512_maskz_loadu_epi16(bits, entries));
    const __m512i channels = _mm512_maskz_compress_epi8(mask, _mm512_load_si512(kChannels));
    _mm256_store_si256(reinterpret_cast<__m256i*>(to + kChannelsAt), _mm512_castsi512_si256(channels));
    std::memcpy(to + kBitsAt, &bits, sizeof bits);
  }
};

// Sums of sixteen rows of NumbersWithChannels, `stride` bytes apart, with 64 channels of queries: 2·kPairs entries from
// `first` on, a multiple of 16.
template <int kQueries, int kPairs>
__attribute__((always_inline)) inline void add_looked_up(const Bf16* channels, const uint8_t* rows, int64_t stride,
                                                         int64_t first, __m512 (&sums)[kQueries]) {
  const auto load = [](const char* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
  const auto turned = [&](const uint8_t* from, __m512i* lanes) __attribute__((always_inline)) {
    const SixteenRows sixteen(from, stride);
    __m512i pieces[4], four[4];
    unroll<4>([&](auto k) __attribute__((always_inline)) { pieces[k] = sixteen.four<k>(load); });
    turn_rows(pieces, four);
    unroll<4>([&](auto k) { lanes[k] = four[k]; });
  };
  __m512i entries[8], numbers[4], places[kPairs];
  turned(rows + 2 * first, entries);
  if constexpr (kPairs > 4) turned(rows + 2 * first + 16, entries + 4);
  turned(rows + NumbersWithChannels::kChannelsAt + first, numbers);
  // Bytes of a lane -> two numbers of 16 bits, of which only the lowest six bits are looked at.
  const __m512i low = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 1, 1, 4, 4, 5, 5, 8, 8, 9, 9, 12, 12, 13, 13));
  const __m512i high = _mm512_add_epi8(low, every_byte(2));
  unroll<kPairs>([&](auto pair) {
    places[pair] = _mm512_shuffle_epi8(numbers[pair / 2], pair % 2 ? high : low);
  });
  unroll<kQueries>([&](auto q) __attribute__((always_inline)) {
    const Bf16* table = channels + q * PairQueries<kQueries>::kStride;
    const __m512i before = _mm512_load_si512(table), after = _mm512_load_si512(table + kPairChannels);
    unroll<kPairs>([&](auto pair) __attribute__((always_inline)) {
      sums[q] = Bf16Pairs::add(sums[q], entries[pair], _mm512_permutex2var_epi16(before, places[pair], after));
    });
  });
}

// The most entries that one of sixteen rows has.
inline int64_t most_entries(const uint8_t* rows, int64_t stride) {
  uint32_t all = 0;
  unroll<Vec::width>([&](auto t) {
    uint32_t bits;
    std::memcpy(&bits, rows + t * stride + NumbersWithChannels::kBitsAt, sizeof bits);
    all |= bits;
  });
  return count_bits(all);
}

// sums[q] of sixteen rows, lane for lane. Rows past the last of a chunk may hold anything, as do their lanes then.
template <int kQueries>
inline void look_up_rows(const PairQueries<kQueries>& queries, const uint8_t* rows, int64_t dim, __m512 (&sums)[kQueries]) {
  const int64_t stride = dim * NumbersWithChannels::kBytes;
  unroll<kQueries>([&](auto q) { sums[q] = Bf16Pairs::zero(); });
  for (int64_t d = 0; d < dim; d += kRowNumbers) {
    const uint8_t* block = rows + d * NumbersWithChannels::kBytes;
    const int64_t most = most_entries(block, stride);
    for (int64_t first = 0; first < most; first += 16) {
      switch ((most - first + 3) / 4) {
        case 1: add_looked_up<kQueries, 2>(queries.rows[0] + d, block, stride, first, sums); break;
        case 2: add_looked_up<kQueries, 4>(queries.rows[0] + d, block, stride, first, sums); break;
        case 3: add_looked_up<kQueries, 6>(queries.rows[0] + d, block, stride, first, sums); break;
        default: add_looked_up<kQueries, 8>(queries.rows[0] + d, block, stride, first, sums); break;
      }
    }
  }
}

}  // namespace
}  // namespace winnow
