// Rows of inputs as signed bytes, for AVX-512: a block that shares a scale keeps 7 bits of its largest number.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "linear/contract.hpp"
#include "linear/avx512/levels.hpp"
#include "linear/laid_blocks.hpp"
#include "simd/avx512.hpp"
#include "simd/element.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

constexpr int32_t kMostByte = 127;

// A block of a row, and what its products with a weight of so many bits begin with.
template <int kBits>
struct ByteBlock {
  static constexpr int64_t kGroups = kRoundedTogether / kGroupInputs<kBits>;

  int8_t numbers[kRoundedTogether];
  float scale;
  int32_t starts[kGroups];  // Of inputs that share a scale of a weight: what its levels stand too high for being unsigned.
  float sums[kHasMiddles<kBits> ? kGroups : 1];  // Of the same inputs where they meet a middle.
};

template <int kBits>
using ByteRows = LaidBlocks<ByteBlock<kBits>>;

inline int64_t byte_row_bytes(const winnow_linear_layer& layer) {
  return with_bits(layer, [&](auto bits) { return laid_row_bytes<ByteBlock<bits>>(layer); });
}

// Four vectors of whole numbers, as bytes in their order: in registers, as a processor waits where it reads a vector that was
// written in pieces.
inline __m512i as_bytes(const __m512i (&numbers)[4]) {
  const __m512i first = _mm512_packs_epi32(numbers[0], numbers[1]), second = _mm512_packs_epi32(numbers[2], numbers[3]);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(first, second));
}

// Writes the numbers of a block, and what follows from them.
template <int kBits>
inline void write_block(__m512i numbers, ByteBlock<kBits>& to) {
  static_assert(kRoundedTogether == sizeof(__m512i));
  _mm512_storeu_si512(to.numbers, numbers);
  const __m512i fours = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), numbers);
  // Sums of two lanes beside each other, and of four: the first quarter, the third, the second and the last.
  const __m256i twos = _mm256_hadd_epi32(_mm512_castsi512_si256(fours), _mm512_extracti64x4_epi64(fours, 1));
  const __m128i quarters = _mm_hadd_epi32(_mm256_castsi256_si128(twos), _mm256_extracti128_si256(twos, 1));
  const int32_t all[] = {_mm_extract_epi32(quarters, 0), _mm_extract_epi32(quarters, 2), _mm_extract_epi32(quarters, 1),
                         _mm_extract_epi32(quarters, 3)};
  constexpr int64_t kGroups = ByteBlock<kBits>::kGroups, kQuarters = 4 / kGroups;
  for (int64_t group = 0; group < kGroups; ++group) {
    int32_t sum = 0;
    for (int64_t quarter = 0; quarter < kQuarters; ++quarter) sum += all[group * kQuarters + quarter];
    to.starts[group] = -kZeroLevel<kBits> * sum;
    if (kHasMiddles<kBits>) to.sums[group] = static_cast<float>(sum);
  }
}

// A block of inputs from `from` on, of which `count` are there. Where the largest is not finite, the scale is not either.
template <int kBits>
inline void round_to_bytes(const Bf16* from, int64_t count, ByteBlock<kBits>& to) {
  constexpr int kVectors = kRoundedTogether / Vec::width;
  Vec numbers[kVectors];
  __m512i sizes = _mm512_setzero_si512();
  for (int v = 0; v < kVectors; ++v) {
    const int64_t rest = count - v * Vec::width;
    numbers[v] = rest > 0 ? load_up_to(from + v * Vec::width, rest) : broadcast(0.0f);
    // As whole numbers, bits without a sign are in the order of sizes, with NaN above all.
    const __m512i size = _mm512_and_si512(_mm512_castps_si512(numbers[v].v), _mm512_set1_epi32(0x7fffffff));
    sizes = _mm512_max_epi32(sizes, size);
  }
  const Vec largest = {_mm512_castsi512_ps(_mm512_set1_epi32(_mm512_reduce_max_epi32(sizes)))};
  const Vec most = broadcast(static_cast<float>(kMostByte));
  // Smaller ones are taken for zero, as their inverse is not finite.
  const Vec steps = if_less(broadcast(1e-30f), largest, most / largest, broadcast(0.0f));
  to.scale = _mm512_cvtss_f32((largest * broadcast(1.0f / kMostByte)).v);
  __m512i whole[kVectors];
  for (int v = 0; v < kVectors; ++v) whole[v] = _mm512_cvtps_epi32((numbers[v] * steps).v);
  write_block(as_bytes(whole), to);
}

template <int kBits>
inline void round_row(const winnow_linear_layer& layer, const LinearRows& all, const ByteRows<kBits>& to, int64_t row) {
  const Bf16* from = static_cast<const Bf16*>(all.inputs) + row * layer.inputs;
  for (int64_t block = 0; block < rounded_blocks(layer); ++block) {
    const int64_t input = block * kRoundedTogether;
    round_to_bytes(from + input, layer.inputs - input, *to.at(row, block));
  }
}

inline void round_row_to_bytes(const winnow_linear_layer& layer, const LinearRows& all, const LaidInputs& rounded,
                               int64_t row) {
  with_bits(layer, [&](auto bits) { round_row(layer, all, ByteRows<bits>(rounded), row); });
}

}  // namespace
}  // namespace winnow
