// A weight of 4 bits as whole numbers that meet those of inputs, for AVX2: for a few inputs after another, some outputs.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "linear/avx2/level_products.hpp"
#include "linear/avx2/nibbles.hpp"
#include "linear/contract.hpp"
#include "rounded/avx/panel.hpp"
#include "simd/avx2.hpp"
#include "simd/element.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Inputs of a panel.
constexpr int64_t kLevelInputs = 128;

// Inputs of which a lane of a vector has a number each.
template <class N>
constexpr int64_t kInLane = 4 / static_cast<int64_t>(sizeof(N));

// A group of inputs of a panel's outputs, whose numbers are levels: what they count, and what none of it stands for.
template <class N>
struct LevelGroup {
  static constexpr int64_t kSteps = WINNOW_SCALE_GROUP / kInLane<N>;

  __m256i levels[kSteps][kPanelVectors];
  Vec scales[kPanelVectors], least[kPanelVectors];
};

// The groups of a panel.
template <class N>
using LevelPanel = LevelGroup<N>[kLevelInputs / WINNOW_SCALE_GROUP];

// Vectors of outputs that have their halves in two: the lower halves, and the upper ones.
inline void deal_halves(__m256i first, __m256i second, __m256i& low, __m256i& high) {
  low = _mm256_permute2x128_si256(first, second, 0x20);
  high = _mm256_permute2x128_si256(first, second, 0x31);
}

static_assert(kPanelVectors == 2 && kNibbleOutputs == 2 * kPanelOutputs);

// The levels of four inputs, for the 16 outputs that have the lower halves and for the others.
inline void lay_four(const uint8_t* from, LevelGroup<int8_t>& low, LevelGroup<int8_t>& high, int64_t input) {
  __m256i inputs[4];
  for (int64_t i = 0; i < 4; ++i) inputs[i] = spread_nibbles(from + i * kInputNibbles);
  const __m256i first[] = {_mm256_unpacklo_epi8(inputs[0], inputs[1]), _mm256_unpackhi_epi8(inputs[0], inputs[1])};
  const __m256i last[] = {_mm256_unpacklo_epi8(inputs[2], inputs[3]), _mm256_unpackhi_epi8(inputs[2], inputs[3])};
  for (int v = 0; v < kPanelVectors; ++v) {
    deal_halves(_mm256_unpacklo_epi16(first[v], last[v]), _mm256_unpackhi_epi16(first[v], last[v]),
                low.levels[input / 4][v], high.levels[input / 4][v]);
  }
}
inline void lay_four(const uint8_t* from, LevelGroup<int16_t>& low, LevelGroup<int16_t>& high, int64_t input) {
  const __m256i zero = _mm256_setzero_si256();
  for (int64_t i = input / 2; i < input / 2 + 2; ++i, from += 2 * kInputNibbles) {
    const __m256i first = spread_nibbles(from), second = spread_nibbles(from + kInputNibbles);
    const __m256i both[] = {_mm256_unpacklo_epi8(first, second), _mm256_unpackhi_epi8(first, second)};
    for (int v = 0; v < kPanelVectors; ++v) {
      deal_halves(_mm256_unpacklo_epi8(both[v], zero), _mm256_unpackhi_epi8(both[v], zero), low.levels[i][v],
                  high.levels[i][v]);
    }
  }
}

template <class N>
inline void lay_scales(const Bf16* pairs, LevelGroup<N>& to) {
  for (int v = 0; v < kPanelVectors; ++v) {
    Vec middle;
    load_pair(pairs + 2 * v * Vec::width, to.scales[v], middle);
    to.least[v] = least_of(to.scales[v], middle);
  }
}

// The inputs [first, last), in whole groups, of the 32 outputs from `output` on: two panels.
template <class N>
inline void lay_levels(const winnow_linear_layer& layer, int64_t first, int64_t last, int64_t output,
                       LevelPanel<N> (&to)[2]) {
  const uint8_t* from = static_cast<const uint8_t*>(layer.weight) + output * layer.inputs / 2 + first * kInputNibbles;
  const Bf16* pairs = static_cast<const Bf16*>(layer.scales) + 2 * (first / WINNOW_SCALE_GROUP * layer.outputs + output);
  for (int64_t group = 0; group < (last - first) / WINNOW_SCALE_GROUP; ++group, pairs += 2 * layer.outputs) {
    LevelGroup<N>&low = to[0][group], &high = to[1][group];
    lay_scales(pairs, low);
    lay_scales(pairs + 2 * kPanelOutputs, high);
    for (int64_t input = 0; input < WINNOW_SCALE_GROUP; input += 4, from += 4 * kInputNibbles) {
      lay_four(from, low, high, input);
    }
  }
}

}  // namespace
}  // namespace winnow
