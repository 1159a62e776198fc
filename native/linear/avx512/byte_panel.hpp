// A weight of 8 or 4 bits as unsigned bytes: for four inputs after another, the outputs that a thread does at a time.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "linear/contract.hpp"
#include "simd/avx512.hpp"
#include "simd/avx512/transpose.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Vectors of four inputs, inputs of a panel, and those of which a lane of a vector has a byte each.
constexpr int kByteVectors = static_cast<int>(kOutputsAtOnce / Vec::width);
constexpr int64_t kByteInputs = 256, kQuad = 4, kGroupQuads = WINNOW_SCALE_GROUP / kQuad;

// Inputs that share a scale, and the number that stands for zero, of weights of so many bits. Of 8 bits all inputs share one.
template <int kBits>
constexpr int64_t kGroupInputs = kBits == 4 ? WINNOW_SCALE_GROUP : kRoundedTogether;
template <int kBits>
constexpr int32_t kZeroNumber = kBits == 4 ? 8 : 128;

struct BytePanel {
  __m512i numbers[kByteInputs / kQuad][kByteVectors];
  Vec scales[kByteInputs / WINNOW_SCALE_GROUP][kByteVectors];  // of 4 bits alone, as middles
  Vec middles[kByteInputs / WINNOW_SCALE_GROUP][kByteVectors];
};

// The inputs [first, last) of a weight of 8 bits, in whole blocks. Inputs and outputs that there are not are zero.
inline void lay_bytes(const winnow_linear_layer& layer, int64_t first, int64_t last, int64_t output, BytePanel& panel) {
  const __m512i zero = _mm512_set1_epi8(-128);
  for (int v = 0; v < kByteVectors; ++v, output += Vec::width) {
    const auto* weight = static_cast<const int8_t*>(layer.weight) + output * layer.inputs;
    const int64_t outputs = layer.outputs - output;
    for (int64_t input = first; input < last; input += kRoundedTogether) {
      const int64_t rest = last - input;
      const __mmask64 there = rest >= kRoundedTogether ? ~__mmask64{0} : (__mmask64{1} << rest) - 1;
      __m512i rows[Vec::width];
      for (int64_t r = 0; r < Vec::width; ++r) {
        const __mmask64 mask = r < outputs ? there : 0;
        rows[r] = _mm512_xor_si512(_mm512_maskz_loadu_epi8(mask, weight + r * layer.inputs + input), zero);
      }
      transpose(rows);
      for (int64_t i = 0; i < Vec::width; ++i) panel.numbers[(input - first) / kQuad + i][v] = rows[i];
    }
  }
}

// Four inputs of 4 bits of all outputs, as they lie -> as bytes.
inline void spread_nibbles(const uint8_t* from, __m512i (&to)[kByteVectors]) {
  static_assert(kByteVectors == 4 && kOutputsAtOnce == 64);
  // Byte i of lane o is that of output o, of 32 of them to an input, of input i.
  const __m512i order = _mm512_set_epi32(0x6f4f2f0f, 0x6e4e2e0e, 0x6d4d2d0d, 0x6c4c2c0c, 0x6b4b2b0b, 0x6a4a2a0a, 0x69492909,
                                         0x68482808, 0x67472707, 0x66462606, 0x65452505, 0x64442404, 0x63432303, 0x62422202,
                                         0x61412101, 0x60402000);
  const __m512i two = _mm512_loadu_si512(from), others = _mm512_loadu_si512(from + kLine), low = _mm512_set1_epi8(15);
  unroll<2>([&](auto half) __attribute__((always_inline)) {
    const __m512i places = _mm512_add_epi8(order, _mm512_set1_epi8(16 * half));
    const __m512i both = _mm512_permutex2var_epi8(two, places, others);
    to[half] = _mm512_and_si512(both, low);
    to[half + 2] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
  });
}

// A group of inputs of 4 bits: numbers, scales and middles of all outputs.
inline void lay_nibble_group(const winnow_linear_layer& layer, int64_t input, int64_t output, int64_t group, BytePanel& panel) {
  const Bf16* pairs = static_cast<const Bf16*>(layer.scales) + 2 * (input / WINNOW_SCALE_GROUP * layer.outputs + output);
  for (int v = 0; v < kByteVectors; ++v) {
    const __m512i both = _mm512_loadu_si512(pairs + 2 * v * Vec::width);
    panel.scales[group][v] = lower(Bf16{}, both);
    panel.middles[group][v] = upper(Bf16{}, both);
  }
  const uint8_t* numbers = static_cast<const uint8_t*>(layer.weight) + (output * layer.inputs + input * kOutputsAtOnce) / 2;
  for (int64_t quad = 0; quad < kGroupQuads; ++quad, numbers += kQuad * kOutputsAtOnce / 2) {
    spread_nibbles(numbers, panel.numbers[group * kGroupQuads + quad]);
  }
}

// The inputs [first, last) of a weight of 4 bits, a whole number of groups. What is missing of the last block is zero.
inline void lay_byte_nibbles(const winnow_linear_layer& layer, int64_t first, int64_t last, int64_t output,
                             BytePanel& panel) {
  int64_t group = 0;
  for (int64_t input = first; input < last; input += WINNOW_SCALE_GROUP) {
    lay_nibble_group(layer, input, output, group++, panel);
  }
  if ((last - first) % kRoundedTogether == 0) return;
  std::memset(panel.numbers[group * kGroupQuads], 0, kGroupQuads * sizeof panel.numbers[0]);
  std::memset(panel.scales[group], 0, sizeof panel.scales[0]);
  std::memset(panel.middles[group], 0, sizeof panel.middles[0]);
}

template <int kBits>
inline void lay(const winnow_linear_layer& layer, int64_t first, int64_t last, int64_t output, BytePanel& panel) {
  kBits == 4 ? lay_byte_nibbles(layer, first, last, output, panel) : lay_bytes(layer, first, last, output, panel);
}

}  // namespace
}  // namespace winnow
