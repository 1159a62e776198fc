// The shape of what is multiplied at a time with AVX2 and with AVX-512.
#pragma once

#include <cstdint>

#include "rounded/sizes.hpp"
#include "simd/vec.hpp"

#ifdef __AVX512F__
#include "rounded/avx512/whole.hpp"
#else
#include "rounded/avx2/whole.hpp"
#endif

namespace winnow {
namespace {

// Sums of so many rows with a panel of outputs are in registers, of which there are 16 or 32, beside two vectors of weights, an
// input and a product.
constexpr int kTileInputs = Vec::width == 16 ? 12 : 6, kPanelVectors = 2;
constexpr int64_t kPanelOutputs = kPanelVectors * Vec::width;

// Numbers of a block of a panel.
constexpr int64_t kPanelBlock = kRoundedTogether * kPanelOutputs;

}  // namespace
}  // namespace winnow
