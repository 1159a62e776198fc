// Gates in double precision, and some that there are not.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "bytes.hpp"
#include "winnow_native.h"

inline winnow_gate gate_from(Bytes& from) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  winnow_gate gate{};
  gate.activation = static_cast<int32_t>(from.below(3));
  gate.alpha = from.coin() ? 1 : 1.702f;
  gate.limit = from.coin() ? kInfinity : static_cast<float>(from.below(8));
  gate.offset = from.coin() ? 0 : static_cast<float>(from.among(-2, 2)) / 2;
  return gate;
}

// The same with an activation or a number that no gate has.
inline winnow_gate undefined(winnow_gate gate, Bytes& from) {
  switch (from.below(6)) {
    case 0: gate.activation = -1; break;
    case 1: gate.activation = 3; break;
    case 2: gate.alpha = 0; break;
    case 3: gate.alpha = std::numeric_limits<float>::infinity(); break;
    case 4: gate.limit = -1; break;
    default: gate.limit = std::numeric_limits<float>::quiet_NaN();
  }
  return gate;
}

// The activation of a gate's output, and the number that it multiplies.
inline double activation_of(const winnow_gate& gate, double output) {
  const double x = std::min<double>(output, gate.limit);
  if (gate.activation == WINNOW_SWISH) return x / (1 + std::exp(-gate.alpha * x));
  if (gate.activation == WINNOW_GELU) return x * std::erfc(-x * std::sqrt(0.5)) / 2;
  const double pi = std::acos(-1.0);
  return x * (1 + std::tanh(std::sqrt(2 / pi) * (x + 0.044715 * x * x * x))) / 2;
}

inline double met_by(const winnow_gate& gate, double up) {
  return std::max<double>(std::min<double>(up, gate.limit), -gate.limit) + gate.offset;
}
