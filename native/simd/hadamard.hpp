// The Walsh–Hadamard transform of rows of floats.
#pragma once

#include <cmath>
#include <cstdint>

#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// (a, b) -> (a + b, a - b) for lanes that are kApart apart.
template <int kApart>
inline Vec butterflies(Vec a) {
  constexpr uint32_t kUpper = kApart == 1 ? 0xaaaa : kApart == 2 ? 0xcccc : kApart == 4 ? 0xf0f0 : 0xff00;
  return exchange<kApart>(a) + negate_where(kUpper, a);
}

// Steps between lanes of one vector, of blocks of so many lanes or of more.
inline Vec transform_lanes(Vec a, int64_t block) {
  if (block > 1) a = butterflies<1>(a);
  if (block > 2) a = butterflies<2>(a);
  if (block > 4) a = butterflies<4>(a);
  if constexpr (Vec::width > 8) {
    if (block > 8) a = butterflies<8>(a);
  }
  return a;
}

// A row of `dim` floats in place, whose vectors begin `stride` floats apart: blocks of as many as the largest power of
// two that divides `dim`, orthonormal. Sums are taken in the order of hadamard.py, so results are the same to the bit.
// Lanes behind the row are mixed with each other only.
inline void transform_row(float* row, int64_t dim, int64_t stride) {
  const int64_t block = dim & -dim, vectors = divide_up(dim, Vec::width), together = block / Vec::width;
  const Vec scale = broadcast(static_cast<float>(1.0 / std::sqrt(static_cast<double>(block))));
  for (int64_t v = 0; v < vectors; ++v) {
    const Vec a = transform_lanes(load(row + v * stride), block);
    store(row + v * stride, together > 1 ? a : a * scale);
  }
  for (int64_t apart = 1; apart < together; apart *= 2) {
    const Vec factor = 2 * apart < together ? broadcast(1.0f) : scale;
    for (int64_t v = 0; v < vectors; ++v) {
      if (v & apart) continue;
      float *first = row + v * stride, *second = first + apart * stride;
      const Vec a = load(first), b = load(second);
      store(first, (a + b) * factor);
      store(second, (a - b) * factor);
    }
  }
}

}  // namespace
}  // namespace winnow
