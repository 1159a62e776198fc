// Steps of the state scan, by which a token's numbers enter a state, and what is kept of the state over each.
#pragma once

#include <cstdint>

#include "scan/head.hpp"
#include "simd/math.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"
#include "winnow_native.h"

namespace winnow {
namespace {

// log(1 + exp(x)) = max(x, 0) + log(1 + z) with z = exp(-|x|), in which nothing cancels. The logarithm is 2 artanh(s) of
// s = z / (2 + z), up to a third: a series that leaves 1e-8 of it.
inline Vec softplus(Vec x) {
  const Vec zero = broadcast(0.0f), z = exp(zero - max(zero - x, x)), s = z / (broadcast(2.0f) + z), square = s * s;
  Vec p = broadcast(2.0f / 15.0f);
  p = fma(p, square, broadcast(2.0f / 13.0f));
  p = fma(p, square, broadcast(2.0f / 11.0f));
  p = fma(p, square, broadcast(2.0f / 9.0f));
  p = fma(p, square, broadcast(2.0f / 7.0f));
  p = fma(p, square, broadcast(2.0f / 5.0f));
  p = fma(p, square, broadcast(2.0f / 3.0f));
  p = fma(p, square, broadcast(2.0f));
  return fma(p, s, max(zero, x));
}

// Of as many tokens as a vector has lanes.
struct ScanSteps {
  alignas(64) float steps[Vec::width], kept[Vec::width];
};

template <class T>
inline void read_steps(const winnow_scan_args& args, const ScanHead<T>& head, int64_t first, ScanSteps& to) {
  alignas(64) T lanes[Vec::width] = {};
  const int64_t count = winnow::least(Vec::width, args.tokens - first);
  for (int64_t t = 0; t < count; ++t) lanes[t] = head.steps[(first + t) * args.step_token];
  // Rounded before and after, as models do.
  Vec step = rounded(T{}, load(lanes) + broadcast(head.bias));
  if (args.softplus) step = softplus(step);
  const Vec least = broadcast(args.least), most = broadcast(args.most), farthest = broadcast(-64.0f);
  step = if_less(step, least, least, step);
  step = rounded(T{}, if_less(most, step, most, step));
  // Beyond what exp knows, nothing is kept.
  const Vec exponent = step * broadcast(head.rate);
  store(to.steps, step);
  store(to.kept, if_less(exponent, farthest, broadcast(0.0f), exp(exponent)));
}

}  // namespace
}  // namespace winnow
