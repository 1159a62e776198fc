// A weight of 4, 5, 6 or 8 bits as unsigned bytes: for four inputs after another, the outputs that a thread does at a time.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "linear/contract.hpp"
#include "linear/avx512/levels.hpp"
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
constexpr int64_t kByteInputs = 256, kQuad = 4;

// Scales of inputs that share one. Where these have a middle, they are twice as many as those that have none, or more: middles
// are what the second half holds.
struct BytePanel {
  static constexpr int64_t kGroups = kByteInputs / kGroupInputs<6>;

  __m512i numbers[kByteInputs / kQuad][kByteVectors];
  Vec scales[kGroups][kByteVectors];

  const Vec (&middles(int64_t group) const)[kByteVectors] { return scales[kGroups / 2 + group]; }
  Vec (&middles(int64_t group))[kByteVectors] { return scales[kGroups / 2 + group]; }
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

// Their high bits, from a line of which they are the kFour-th four that share it, are added.
template <int kBits, int kFour>
inline void spread_high_bits(const uint8_t* from, __m512i (&to)[kByteVectors]) {
  // Bytes of two inputs, for the other two once more: of an even output, then of an odd one.
  const __m512i order = _mm512_set_epi32(0x1f1d1f1d, 0x1e1c1e1c, 0x1b191b19, 0x1a181a18, 0x17151715, 0x16141614, 0x13111311,
                                         0x12101210, 0x0f0d0f0d, 0x0e0c0e0c, 0x0b090b09, 0x0a080a08, 0x07050705, 0x06040604,
                                         0x03010301, 0x02000200);
  // The first two inputs have a place that is even.
  static_assert(high_bit(2 * kFour) == 4 + 2 * kFour && high_bit(2 * kFour + 1) == 2 * kFour);
  const __m512i line = _mm512_srli_epi16(_mm512_loadu_si512(from), 2 * kFour), to_fours = _mm512_set1_epi32(4 << 16);
  const __m512i high = _mm512_set1_epi8(((1 << kHighBits<kBits>) - 1) << 4);
  constexpr int kOrAnd = 0xf8;  // a | (b & c)
  unroll<2>([&](auto half) __attribute__((always_inline)) {
    const __m512i places = _mm512_add_epi8(order, _mm512_set1_epi8(32 * half));
    const __m512i bits = _mm512_sllv_epi16(_mm512_permutexvar_epi8(places, line), to_fours);
    to[half] = _mm512_ternarylogic_epi32(to[half], bits, high, kOrAnd);
    to[half + 2] = _mm512_ternarylogic_epi32(to[half + 2], _mm512_srli_epi16(bits, kHighBits<kBits>), high, kOrAnd);
  });
}

// Scales and middles of inputs that share them, of all outputs.
template <int kBits>
inline void lay_scales(const Bf16* from, int64_t group, BytePanel& panel) {
  for (int v = 0; v < kByteVectors; ++v) {
    if constexpr (kHasMiddles<kBits>) {
      load_pair(from + 2 * v * Vec::width, panel.scales[group][v], panel.middles(group)[v]);
    } else {
      panel.scales[group][v] = load(from + v * Vec::width);
    }
  }
}

// The levels of WINNOW_SCALE_GROUP inputs of all outputs.
template <int kBits>
inline void lay_levels(LevelPlanes<kBits> planes, __m512i (*to)[kByteVectors]) {
  constexpr int kFours = kBits == 4 ? 1 : kSharing<kBits> / 2;  // of inputs that share a line of high bits
  for (int64_t quad = 0; quad < WINNOW_SCALE_GROUP / kQuad; quad += kFours, planes.high += kLine) {
    unroll<kFours>([&](auto four) __attribute__((always_inline)) {
      spread_nibbles(planes.low, to[quad + four]);
      if constexpr (kBits > 4) spread_high_bits<kBits, four>(planes.high, to[quad + four]);
      planes.low += kQuad * planes.kInputBytes;
    });
  }
}

// The inputs [first, last) of a weight of 4 to 6 bits, a whole number of WINNOW_SCALE_GROUP. What is missing of the last block
// is zero.
template <int kBits>
inline void lay_groups(const winnow_linear_layer& layer, int64_t first, int64_t last, int64_t output, BytePanel& panel) {
  int64_t quad = 0, group = 0;
  for (int64_t input = first; input < last; quad += WINNOW_SCALE_GROUP / kQuad) {
    lay_levels<kBits>({layer, output, input}, panel.numbers + quad);
    for (int64_t part = 0; part < kScaleParts<kBits>; ++part, input += kGroupInputs<kBits>) {
      lay_scales<kBits>(scales_at<kBits>(layer, output, input), group++, panel);
    }
  }
  if ((last - first) % kRoundedTogether == 0) return;
  std::memset(panel.numbers[quad], 0, WINNOW_SCALE_GROUP / kQuad * sizeof panel.numbers[0]);
  for (int64_t part = 0; part < kScaleParts<kBits>; ++part, ++group) {
    std::memset(panel.scales[group], 0, sizeof panel.scales[0]);
    if (kHasMiddles<kBits>) std::memset(panel.middles(group), 0, sizeof panel.scales[0]);
  }
}

template <int kBits>
inline void lay(const winnow_linear_layer& layer, int64_t first, int64_t last, int64_t output, BytePanel& panel) {
  if constexpr (kBits == 8) return lay_bytes(layer, first, last, output, panel);
  if constexpr (kBits < 8) lay_groups<kBits>(layer, first, last, output, panel);
}

}  // namespace
}  // namespace winnow
