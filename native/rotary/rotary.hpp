// Rotary embedding of queries and keys, in one pass where torch takes sixteen: channels i and i + D / 2, or neighbors, are a
// point that is turned by an angle of the token's.
#pragma once

#include <cstdint>
#include <cstring>

#include "rotary/contract.hpp"
#include "simd/element.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// The channels of a head's pairs from the i-th on, up to a vector of each: neighbors, or half a head apart.
template <bool kInterleaved, class T>
inline void load_channels(const T* from, int64_t half, int64_t i, Vec& x, Vec& y) {
  const int64_t n = half - i;
  if constexpr (kInterleaved) {
    const int64_t rest = 2 * n - Vec::width;
    x = load_up_to(from + 2 * i, 2 * n);
    y = rest > 0 ? load_up_to(from + 2 * i + Vec::width, rest) : broadcast(0.0f);
    deal_lanes(x, y);
  } else {
    x = load_up_to(from + i, n);
    y = load_up_to(from + half + i, n);
  }
}

// A head of one token; the angles of its second channels begin `apart` behind those of the first. Products are rounded before
// they are added up, as models do.
template <bool kInterleaved, class T>
inline void turn(const T* from, const T* cos, const T* sin, int64_t half, int64_t apart, T* to) {
  for (int64_t i = 0; i < half; i += Vec::width) {
    const int64_t n = half - i, other = half + i;
    Vec x, y;
    load_channels<kInterleaved>(from, half, i, x, y);
    const Vec a = rounded(T{}, x * load_up_to(cos + i, n)), b = rounded(T{}, y * load_up_to(sin + i, n));
    const Vec c = rounded(T{}, y * load_up_to(cos + apart + i, n)), d = rounded(T{}, x * load_up_to(sin + apart + i, n));
    store_up_to(to + i, a - b, n);
    store_up_to(to + other, c + d, n);
  }
}

// Neighbors, of a head of one token, times the angles of `points` of them. Both are complex numbers.
template <class T>
inline void multiply_points(const T* from, const float* angles, int64_t points, T* to) {
  alignas(64) float real[Vec::width], imaginary[Vec::width], both[2 * Vec::width];
  for (int64_t i = 0; i < points; i += Vec::width) {
    Vec x, y, cos, sin;
    load_channels<true>(from, points, i, x, y);
    load_channels<true>(angles, points, i, cos, sin);
    store(real, x * cos - y * sin);
    store(imaginary, x * sin + y * cos);
    for (int64_t lane = 0; lane < Vec::width; ++lane) {
      both[2 * lane] = real[lane];
      both[2 * lane + 1] = imaginary[lane];
    }
    const int64_t rest = 2 * (points - i);
    store_up_to(to + 2 * i, load(both), rest);
    if (rest > Vec::width) store_up_to(to + 2 * i + Vec::width, load(both + Vec::width), rest - Vec::width);
  }
}

// cos and sin: angles of the token.
template <class T>
inline void turn_head(const winnow_rotary_args& args, const T* from, const void* cos, const void* sin, T* to) {
  const T *of_cos = static_cast<const T*>(cos), *of_sin = static_cast<const T*>(sin);
  const int64_t half = args.dim / 2;
  switch (args.points) {
    case WINNOW_COMPLEX: return multiply_points(from, static_cast<const float*>(cos), half, to);
    case WINNOW_INTERLEAVED: return turn<true>(from, of_cos, of_sin, half, 0, to);
    default: return turn<false>(from, of_cos, of_sin, half, args.angles - half, to);
  }
}

template <class T>
inline void turn_heads(const winnow_rotary_rows& rows, const winnow_rotary_args& args, const void* cos, const void* sin,
                       int64_t row, int64_t token) {
  const T* from = static_cast<const T*>(rows.source) + row * rows.source_row + token * rows.source_token;
  T* to = static_cast<T*>(rows.target) + row * rows.target_row + token * rows.target_token;
  for (int64_t head = 0; head < rows.heads; ++head) {
    const T* source = from + head * rows.source_head;
    T* target = to + head * rows.target_head;
    turn_head(args, source, cos, sin, target);
    if (args.rest) std::memcpy(target + args.dim, source + args.dim, static_cast<size_t>(args.rest) * sizeof(T));
  }
}

template <class T>
void rotary(const winnow_rotary_args& args, int64_t first, int64_t last) {
  for (int64_t each = first; each < last; ++each) {
    const int64_t row = each / args.tokens, token = each % args.tokens;
    const int64_t angles = row * args.angles_row + token * args.angles;
    const int64_t bytes = angles * static_cast<int64_t>(args.points == WINNOW_COMPLEX ? sizeof(float) : sizeof(T));
    const char *cos = static_cast<const char*>(args.cos) + bytes, *sin = static_cast<const char*>(args.sin) + bytes;
    turn_heads<T>(args.queries, args, cos, sin, row, token);
    turn_heads<T>(args.keys, args, cos, sin, row, token);
  }
}

}  // namespace
}  // namespace winnow
