// A weight of 4 bits as numbers of bf16, for AVX-512: many rows of inputs are multiplied by those.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "linear/contract.hpp"
#include "simd/element.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Vectors of the outputs that lie beside each other.
constexpr int kWrittenVectors = static_cast<int>(kOutputsAtOnce / Vec::width);

// A group of inputs of the outputs that lie beside each other from `output` on.
inline void write_out_group(const winnow_linear_layer& layer, int64_t group, int64_t output, Bf16* to, int64_t stride) {
  const Bf16* pairs = static_cast<const Bf16*>(layer.scales) + 2 * (group * layer.outputs + output);
  Vec scales[kWrittenVectors], middles[kWrittenVectors];
  unroll<kWrittenVectors>([&](auto v) __attribute__((always_inline)) {
    const __m512i both = _mm512_loadu_si512(pairs + 2 * v * Vec::width);
    scales[v] = lower(Bf16{}, both);
    middles[v] = upper(Bf16{}, both);
  });
  const uint8_t* numbers = static_cast<const uint8_t*>(layer.weight) +
                           (output * layer.inputs + group * WINNOW_SCALE_GROUP * kOutputsAtOnce) / 2;
  const __m256i low = _mm256_set1_epi8(15), middle = _mm256_set1_epi8(8);
  for (int64_t i = 0; i < WINNOW_SCALE_GROUP; ++i, numbers += kOutputsAtOnce / 2, to += stride) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(numbers));
    const __m256i halves[] = {_mm256_sub_epi8(_mm256_and_si256(both, low), middle),
                              _mm256_sub_epi8(_mm256_and_si256(_mm256_srli_epi16(both, 4), low), middle)};
    unroll<kWrittenVectors>([&](auto v) __attribute__((always_inline)) {
      constexpr int kVector = v;
      const __m128i levels = _mm256_extracti128_si256(halves[kVector / 2], kVector % 2);
      const Vec level = {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(levels))};
      store(to + v * Vec::width, fma(level, scales[v], middles[v]));
    });
  }
}

inline void write_out_nibbles(const winnow_linear_layer& layer, const WrittenOut& part, int64_t first, int64_t last) {
  const int64_t stride = part.last - part.first;
  for (int64_t group = first; group < last; ++group) {
    Bf16* to = static_cast<Bf16*>(part.to) + group * WINNOW_SCALE_GROUP * stride;
    for (int64_t output = part.first; output < part.last; output += kOutputsAtOnce, to += kOutputsAtOnce) {
      write_out_group(layer, group, output, to, stride);
    }
  }
}

}  // namespace
}  // namespace winnow
