// Outputs of a linear layer, gated by those of another one.
#pragma once

#include <cstdint>

#include "linear/contract.hpp"
#include "simd/math.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Activations in fp32. Below a number they are as good as zero, and are taken there: farther down, exp would overflow, and
// -inf would become no number.
inline Vec not_below(float least, Vec x) { return if_less(x, broadcast(least), broadcast(least), x); }

// x / (1 + exp(-alpha x)): silu where alpha is 1.
inline Vec swish(Vec x, float alpha) {
  const Vec number = not_below(-87.0f / alpha, x);
  return number / (broadcast(1.0f) + exp(number * broadcast(-alpha)));
}

// x (1 + tanh(u)) / 2 = x / (1 + exp(-2u)), in which nothing cancels, of u = sqrt(2 / pi) (x + 0.044715 x³).
inline Vec gelu_by_tanh(Vec x) {
  const Vec number = not_below(-9.9f, x);
  const Vec slope = fma(number * number, broadcast(-0.0713548163f), broadcast(-1.59576912f));
  return number / (broadcast(1.0f) + exp(number * slope));
}

// x (1 + erf(x / sqrt(2))) / 2: a normal distribution's mass above a size is exp(-size² / 2) times what is nearly
// a polynomial in t = 1 / (1 + 0.35 size), to 3e-8 of it. Its coefficients are a minimax fit up to a size of 14.
inline Vec gelu(Vec x) {
  const Vec zero = broadcast(0.0f), one = broadcast(1.0f), most = broadcast(13.0f), number = not_below(-13.0f, x);
  const Vec beyond = max(number, zero - number), size = if_less(most, beyond, most, beyond);
  const Vec t = one / fma(size, broadcast(0.35f), one);
  Vec p = broadcast(-2.91461394e-2f);
  p = fma(p, t, broadcast(1.43972707e-1f));
  p = fma(p, t, broadcast(-2.55716319e-1f));
  p = fma(p, t, broadcast(1.59176491e-1f));
  p = fma(p, t, broadcast(-2.31114174e-2f));
  p = fma(p, t, broadcast(1.05508663e-1f));
  p = fma(p, t, broadcast(1.19832704e-1f));
  p = fma(p, t, broadcast(1.39861892e-1f));
  p = fma(p, t, broadcast(1.39621403e-1f));
  const Vec above = p * t * exp(size * size * broadcast(-0.5f));
  return number * if_less(number, zero, above, one - above);
}

// Gates so many numbers that lie side by side, as those that they gate do.
template <class T, class Activate>
void gate_beside(const Activate& activate, const winnow_gate& gate, const T* gates, const T* ups, T* to, int64_t count) {
  const Vec most = broadcast(gate.limit), lowest = broadcast(-gate.limit), offset = broadcast(gate.offset);
  for (int64_t i = 0; i < count; i += Vec::width) {
    const Vec number = load_up_to(gates + i, count - i), up = load_up_to(ups + i, count - i);
    const Vec floored = if_less(up, lowest, lowest, up), gated = if_less(most, floored, most, floored) + offset;
    // Rounded before it meets what it gates, as models do.
    const Vec activated = rounded(T{}, activate(if_less(most, number, most, number)));
    store_up_to(to + i, activated * gated, count - i);
  }
}

// The same where they take turns.
template <class T, class Activate>
void gate_in_turn(const Activate& activate, const winnow_gate& gate, const T* both, T* to, int64_t count) {
  T gates[kOutputsAtOnce], ups[kOutputsAtOnce];
  for (int64_t first = 0; first < count; first += kOutputsAtOnce) {
    const int64_t part = least(kOutputsAtOnce, count - first);
    for (int64_t i = 0; i < part; ++i) gates[i] = both[2 * (first + i)], ups[i] = both[2 * (first + i) + 1];
    gate_beside(activate, gate, gates, ups, to + first, part);
  }
}

template <class T, class Activate>
void gate_by(const Activate& activate, const winnow_gate& gate, const GatedRows& rows, int64_t first, int64_t last) {
  for (int64_t row = 0; row < rows.count; ++row) {
    const T* gates = static_cast<const T*>(rows.gates) + row * rows.stride;
    T* to = static_cast<T*>(rows.outputs) + row * rows.outputs_stride + first;
    if (rows.ups) {
      const T* ups = static_cast<const T*>(rows.ups) + row * rows.stride;
      gate_beside(activate, gate, gates + first, ups + first, to, last - first);
    } else {
      gate_in_turn(activate, gate, gates + 2 * first, to, last - first);
    }
  }
}

template <class T>
void gate(const winnow_gate& gate, const GatedRows& rows, int64_t first, int64_t last) {
  if (gate.activation == WINNOW_GELU) {
    gate_by<T>(gelu, gate, rows, first, last);
  } else if (gate.activation == WINNOW_GELU_TANH) {
    gate_by<T>(gelu_by_tanh, gate, rows, first, last);
  } else {
    gate_by<T>([&](Vec x) { return swish(x, gate.alpha); }, gate, rows, first, last);
  }
}

}  // namespace
}  // namespace winnow
