// Single numbers -> fp32.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd/element.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

inline float to_float(float x) { return x; }
inline float to_float(Bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float number;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}
inline float to_float(Fp16 x) {
  alignas(64) float lanes[Vec::width];
  store(lanes, load_first(&x, 1));
  return lanes[0];
}

}  // namespace
}  // namespace winnow
