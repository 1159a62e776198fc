// Keys that keep channels of their own, as rows of all channels: kept entries with zeros between, and, as bytes, ±1 where a
// sign stands for what is gone, with zeros between.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "packed/avx512/blocks_of_64.hpp"
#include "packed/avx512/key_places.hpp"
#include "packed/format.hpp"
#include "packed/masked_rows.hpp"
#include "packed/scratch.hpp"
#include "packed/unpack.hpp"
#include "simd/bits.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Keys that are expanded together, and the most channels that they have.
constexpr int64_t kExpandedKeys = 32, kMostExpandedDim = 256;

// Numbers of 16 bits go to the lanes of the first 32 bits of a mask in their order, with zeros between. The intrinsic's
// register would wait for what it held before, whatever that was.
inline __m512i expand_numbers(__mmask64 mask, __m512i numbers) {
  __m512i result = _mm512_setzero_si512();
  asm("vpexpandw %1, %0%{%2%}" : "+v"(result) : "v"(numbers), "Yk"(mask));
  return result;
}

// Numbers of 16 bits of `a`, and of `b` where the first 32 bits of a mask are set. The intrinsic takes a mask of 32 bits, which
// a compiler would make anew.
inline __m512i blend_numbers(__mmask64 mask, __m512i a, __m512i b) {
  __m512i result;
  asm("vpblendmw %3, %2, %0%{%1%}" : "=v"(result) : "Yk"(mask), "v"(a), "v"(b));
  return result;
}

// Kept entries in 16 bits. Those of 64 channels go to their places; how many of the first 32 are kept comes with them.
struct ExpandedNumbers {
  static constexpr int64_t kBytes = 2;

  static void expand(__mmask64 mask, int64_t count_low, const uint8_t* entries, uint8_t* to) {
    _mm512_store_si512(to, expand_numbers(mask, _mm512_loadu_si512(entries)));
    const __m512i rest = _mm512_loadu_si512(entries + kBytes * count_low);
    _mm512_store_si512(to + 64, expand_numbers(_kshiftri_mask64(mask, 32), rest));
  }
};

// The same of integers of 8 bits.
struct ExpandedIntegers {
  static constexpr int64_t kBytes = 1;

  static void expand(__mmask64 mask, int64_t, const uint8_t* entries, uint8_t* to) {
    _mm512_store_si512(to, _mm512_maskz_expand_epi8(mask, _mm512_loadu_si512(entries)));
  }
};

// A row after another, without gaps.
template <class Kept>
struct ExpandedKeys {
  alignas(64) uint8_t kept[kExpandedKeys * kMostExpandedDim * Kept::kBytes];
  alignas(64) uint8_t signs[kExpandedKeys * kMostExpandedDim];
};

// Expands a key of kBlocks·64 channels. Returns how many entries it keeps.
template <class Kept, int kBlocks>
__attribute__((always_inline)) inline int64_t expand_key(const KeyPlace& key, uint8_t* kept, uint8_t* bytes) {
  const __m512i plus = every_byte(1), minus = every_byte(-1);
  int64_t count = 0;
  unroll<kBlocks>([&](auto block) __attribute__((always_inline)) {
    uint64_t here = load_word(key.mask + 8 * block), gone = ~here;
    // Or masks of lanes would be made of bits, and bits of these, more often than is needed.
    asm("" : "+r"(here), "+r"(gone));
    const uint64_t negative = deposit(bits_at(key.signs, kRowNumbers * block - count), gone);
    const __mmask64 lanes = _cvtu64_mask64(here);
    Kept::expand(lanes, __builtin_popcount(static_cast<uint32_t>(here)), key.entries + Kept::kBytes * count,
                 kept + block * kRowNumbers * Kept::kBytes);
    const __m512i positive = _mm512_maskz_mov_epi8(_knot_mask64(lanes), plus);
    _mm512_store_si512(bytes + block * kRowNumbers, _mm512_mask_mov_epi8(positive, negative, minus));
    count += count_bits(here);
  });
  return count;
}

// The same for a key near the end of an array, behind which nothing may be read.
template <class Kept, int kBlocks>
__attribute__((noinline)) int64_t expand_last_key(const winnow_rows& rows, const MaskedRows& reader, uint8_t* kept,
                                                  uint8_t* bytes) {
  constexpr int64_t kDim = kBlocks * kRowNumbers;
  alignas(64) uint8_t mask_copy[kDim / 8 + kRowSlack], sign_copy[kDim / 8 + kRowSlack];
  alignas(64) uint8_t data_copy[kDim * Kept::kBytes + kRowSlack];
  const int64_t count = reader.count_kept();
  const uint8_t* mask = readable(reader.mask(), reader.mask_bytes(), reader.mask_end(), mask_copy);
  const uint8_t* data = readable(reader.data(), count * Kept::kBytes, bytes_at(rows.data) + rows.data_bytes, data_copy);
  const uint8_t* signs = reader.signs() ? readable(reader.signs(), bytes_of_bits(kDim - count),
                                                   rows.signs + rows.signs_bytes, sign_copy)
                                        : kAllPositive;
  return expand_key<Kept, kBlocks>({mask, data, signs}, kept, bytes);
}

// The next `count` keys, behind which there is more to be read.
template <class Kept, int kBlocks>
__attribute__((noinline)) void expand_open_keys(const winnow_rows& rows, int64_t count, MaskedRows& reader,
                                                ExpandedKeys<Kept>& keys) {
  constexpr int64_t kDim = kBlocks * kRowNumbers;
  KeyPlaces places(rows, reader, kDim, Kept::kBytes);
  uint8_t *kept = keys.kept, *bytes = keys.signs;
  for (int64_t t = 0; t < count; ++t, kept += kDim * Kept::kBytes, bytes += kDim) {
    const int64_t used = expand_key<Kept, kBlocks>(places.here(), kept, bytes);
    places.step([&] { return used; });
  }
  const uint8_t* entries = reader.data();
  places.leave(count, reader);
  for (; entries < reader.data(); entries += kLine) {
    prefetch_busy(reinterpret_cast<const char*>(entries) + kPrefetchBytes);
  }
}

// The next `count` keys.
template <class Kept, int kBlocks>
inline void expand_keys(const winnow_rows& rows, int64_t count, MaskedRows& reader, ExpandedKeys<Kept>& keys) {
  if (reader.open_ahead(count)) return expand_open_keys<Kept, kBlocks>(rows, count, reader, keys);
  constexpr int64_t kDim = kBlocks * kRowNumbers;
  for (int64_t t = 0; t < count; ++t) {
    reader.step(expand_last_key<Kept, kBlocks>(rows, reader, keys.kept + t * kDim * Kept::kBytes,
                                               keys.signs + t * kDim));
  }
}

}  // namespace
}  // namespace winnow
