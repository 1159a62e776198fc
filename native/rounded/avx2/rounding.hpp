// Numbers -> whole numbers of 16 bits, for AVX2.
//
// A block of numbers that share a scale keeps 14 bits of its largest input, and 13 of its largest weight: bf16 has 8 of each.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "rounded/avx2/panel.hpp"
#include "rounded/sizes.hpp"
#include "simd/avx2.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// The bits of a number without its sign: as whole numbers they are in its order, with NaN above all.
inline __m256i size_bits(Vec a) { return _mm256_and_si256(_mm256_castps_si256(a.v), _mm256_set1_epi32(0x7fffffff)); }

// What makes numbers up to `largest` whole numbers up to `most`, and these numbers again. Where `largest` is not finite, the
// second is not either; where the first would not be, numbers are taken for zero.
struct RoundedScale {
  Vec to, back;

  RoundedScale(Vec largest, int32_t most) {
    const Vec limit = broadcast(static_cast<float>(most)), smallest = broadcast(1e-30f), none = broadcast(0.0f);
    to = if_less(smallest, largest, limit / largest, none);
    back = largest * broadcast(1.0f / static_cast<float>(most));
  }
};

inline __m256i round_whole(Vec a, Vec to) { return _mm256_cvtps_epi32((a * to).v); }

// A block of numbers as whole numbers, beside each other.
inline void store_whole(const Vec (&numbers)[kRoundedTogether / Vec::width], Vec scale, int16_t* to) {
  for (int64_t v = 0; v < kRoundedTogether / Vec::width; v += 2) {
    const __m256i mixed = _mm256_packs_epi32(round_whole(numbers[v], scale), round_whole(numbers[v + 1], scale));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + v * Vec::width), _mm256_permute4x64_epi64(mixed, 0xd8));
  }
}

// A block of inputs from `from` on, of which `count` are there.
template <class T>
inline void round_inputs(const T* from, int64_t count, int16_t* to, float* scale) {
  constexpr int kVectors = kRoundedTogether / Vec::width;
  Vec numbers[kVectors];
  __m256i largest = _mm256_setzero_si256();
  for (int v = 0; v < kVectors; ++v) {
    const int64_t rest = count - v * Vec::width;
    numbers[v] = rest > 0 ? load_up_to(from + v * Vec::width, rest) : broadcast(0.0f);
    largest = _mm256_max_epi32(largest, size_bits(numbers[v]));
  }
  __m128i most = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0x4e));
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0xb1));
  const RoundedScale scales({_mm256_castsi256_ps(_mm256_broadcastd_epi32(most))}, kMostInput);
  store_whole(numbers, scales.to, to);
  *scale = _mm256_cvtss_f32(scales.back.v);
}

// A block of a panel, as pairs of inputs [kRoundedTogether / 2, kPanelOutputs, 2], with a scale for each output.
inline void round_columns(const float (&numbers)[kRoundedTogether][kPanelOutputs], int16_t* to, float* scales) {
  for (int64_t o = 0; o < kPanelOutputs; o += Vec::width) {
    __m256i largest = _mm256_setzero_si256();
    for (const auto& outputs : numbers) largest = _mm256_max_epi32(largest, size_bits(load(outputs + o)));
    const RoundedScale scale({_mm256_castsi256_ps(largest)}, kMostWeight);
    store(scales + o, scale.back);
    for (int64_t i = 0; i < kRoundedTogether; i += 2) {
      const __m256i even = round_whole(load(numbers[i] + o), scale.to);
      const __m256i odd = round_whole(load(numbers[i + 1] + o), scale.to);
      const __m256i pairs = _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xaa);
      _mm256_store_si256(reinterpret_cast<__m256i*>(to + i * kPanelOutputs + 2 * o), pairs);
    }
  }
}

}  // namespace
}  // namespace winnow
