// exp and tanh on whole vectors, accurate to about 1e-7.
#pragma once

#include "simd/vec.hpp"

namespace winnow {
namespace {

// exp(x) for x <= 88; anything below -64 gives exp(-64), about 1.6e-28: nothing next to 1, and far enough from subnormals
// that none comes of it, for which a processor takes a hundred cycles. NaN stays NaN: `max` gives its second operand then.
inline Vec exp(Vec x) {
  x = max(broadcast(-64.0f), x);
  const Vec n = round_nearest(x * broadcast(1.44269504f));
  // ln 2 in two parts: n·0.693359375 is exact, so the remainder keeps all its digits.
  const Vec r = fma(n, broadcast(2.12194440e-4f), fma(n, broadcast(-0.693359375f), x));
  Vec p = broadcast(1.3751150e-3f);
  p = fma(p, r, broadcast(8.3689904e-3f));
  p = fma(p, r, broadcast(4.1669544e-2f));
  p = fma(p, r, broadcast(1.6666518e-1f));
  p = fma(p, r, broadcast(4.9999988e-1f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  return scale_by_power(p, n);
}

// An odd polynomial near zero, where the exponential form would cancel.
inline Vec tanh(Vec x) {
  const Vec zero = broadcast(0.0f), one = broadcast(1.0f);
  const Vec size = max(x, zero - x);
  const Vec t = exp(size * broadcast(-2.0f));
  const Vec far = (one - t) / (one + t);
  const Vec square = x * x;
  Vec p = broadcast(-5.9089786e-3f);
  p = fma(p, square, broadcast(2.0808747e-2f));
  p = fma(p, square, broadcast(-5.3787969e-2f));
  p = fma(p, square, broadcast(1.3331978e-1f));
  p = fma(p, square, broadcast(-3.3333302e-1f));
  p = fma(p, square, one);
  return if_less(size, broadcast(0.6f), p * x, if_less(x, zero, zero - far, far));
}

}  // namespace
}  // namespace winnow
