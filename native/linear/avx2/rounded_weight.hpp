// A block of a weight as whole numbers, for AVX2.
#pragma once

#include <cstdint>
#include <type_traits>

#include "linear/avx/turned_rows.hpp"
#include "linear/contract.hpp"
#include "simd/element.hpp"

namespace winnow {
namespace {

// The block from an input on of a panel's outputs, as round_columns has it. Levels of 4 bits are multiplied as they are
// (byte_rows.hpp).
template <class T>
inline void round_weight(const winnow_linear_layer& layer, int64_t input, int64_t output, int16_t* to, float* scales) {
  static_assert(std::is_same_v<T, Bf16>, "and so are scales");
  layer.bits == 8 ? turn_bytes(layer, input, output, to, scales) : round_rows(layer, input, output, to, scales);
}

}  // namespace
}  // namespace winnow
