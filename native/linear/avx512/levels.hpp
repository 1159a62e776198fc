// Weights of 4, 5, 6 and 8 bits, for AVX-512: levels, one of which stands for zero steps, and groups of inputs that share
// a scale.
//
// Below 8 bits, outputs lie in blocks, and inputs of a block in groups. A group has a plane of the low four bits: input after
// input, the outputs of both halves of the block to a byte. Behind it is a plane of the bits above. A byte of that has those of
// two outputs as well, and of a few inputs in turn: so many that a vector of such bytes serves each by one shift.
#pragma once

#include <cstdint>

#include "linear/contract.hpp"
#include "rounded/sizes.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "sizes.hpp"
#include "winnow_native.h"

namespace winnow {
namespace {

// Inputs that share a scale.
template <int kBits>
constexpr int64_t kGroupInputs = kBits == 8   ? kRoundedTogether  // of all, as many as are looked at together
                                 : kBits == 6 ? WINNOW_SCALE_GROUP / 2
                                              : WINNOW_SCALE_GROUP;

// The level that stands for zero steps, or for the middle of a group that has one.
template <int kBits>
constexpr int32_t kZeroLevel = 1 << (kBits - 1);

template <int kBits>
constexpr bool kHasMiddles = kBits < 6;

// Bits above the low four, and numbers of an output that share a byte of them.
template <int kBits>
constexpr int kHighBits = kBits - 4;
template <int kBits>
constexpr int kSharing = kBits == 4 ? 1 : 4 / kHighBits<kBits>;

// Groups of WINNOW_SCALE_GROUP inputs, in parts that share a scale; numbers that each part has for an output.
template <int kBits>
constexpr int64_t kScaleParts = WINNOW_SCALE_GROUP / kGroupInputs<kBits>;
template <int kBits>
constexpr int64_t kScaleNumbers = kHasMiddles<kBits> ? 2 : 1;

// Bits of the first output from the lowest of a byte on, of a number with a place among those that share it: those with even
// places are where levels have theirs, or two bits above. The other output's are next.
constexpr int high_bit(int place) { return 4 - 4 * (place % 2) + 2 * (place / 2); }

// A group of inputs of a block of outputs, or a part of it that shares a scale.
template <int kBits>
struct LevelPlanes {
  static constexpr int64_t kInputBytes = kOutputsAtOnce / 2, kLowBytes = WINNOW_SCALE_GROUP * kInputBytes;
  static constexpr int64_t kBytes = kLowBytes * kBits / 4;

  const uint8_t *low, *high;
  const char* ahead;  // What is asked for meanwhile, in its order: lines of both planes in turn come later.

  // Of a block of outputs from `output` on and a group of inputs from `input` on.
  LevelPlanes(const winnow_linear_layer& layer, int64_t output, int64_t input)
      : low(static_cast<const uint8_t*>(layer.weight) + (output * layer.inputs + input * kOutputsAtOnce) * kBits / 8),
        high(low + kLowBytes),
        ahead(reinterpret_cast<const char*>(low) + kPrefetchBytes) {}

  LevelPlanes part(int64_t part) const {
    constexpr int64_t kParts = kScaleParts<kBits>;
    LevelPlanes found = *this;
    found.low += part * kLowBytes / kParts;
    found.high += part * (kBytes - kLowBytes) / kParts;
    found.ahead += part * kBytes / kParts;
    return found;
  }

  void operator++() {
    low += kBytes;
    high += kBytes;
    ahead += kBytes;
  }

  void ask_ahead() {
    prefetch_span<kLine, false>(ahead);
    ahead += kLine;
  }
};

// Scales, and middles, of a part of a group of inputs from `input` on, for the outputs from `output` on.
template <int kBits>
inline const Bf16* scales_at(const winnow_linear_layer& layer, int64_t output, int64_t input) {
  return static_cast<const Bf16*>(layer.scales) + kScaleNumbers<kBits> * (input / kGroupInputs<kBits> * layer.outputs + output);
}

// body(Count<bits>) of a weight of few bits.
template <class Body>
__attribute__((always_inline)) inline auto with_bits(const winnow_linear_layer& layer, const Body& body) {
  switch (layer.bits) {
    case 4: return body(Count<4>{});
    case 5: return body(Count<5>{});
    case 6: return body(Count<6>{});
    default: return body(Count<8>{});
  }
}

}  // namespace
}  // namespace winnow
