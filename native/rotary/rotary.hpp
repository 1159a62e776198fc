// Rotary embedding of queries and keys, in one pass where torch takes sixteen: channels i and i + D / 2 are a point that is
// turned by an angle of the token's.
#pragma once

#include <cstdint>
#include <cstring>

#include "rotary/contract.hpp"
#include "simd/element.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// A head of one token; the angles of its second channels begin `apart` behind those of the first. Products are rounded before
// they are added up, as models do.
template <class T>
inline void turn(const T* from, const T* cos, const T* sin, int64_t half, int64_t apart, T* to) {
  for (int64_t i = 0; i < half; i += Vec::width) {
    const int64_t n = half - i, other = half + i;
    const Vec x = load_up_to(from + i, n), y = load_up_to(from + other, n);
    const Vec a = rounded(T{}, x * load_up_to(cos + i, n)), b = rounded(T{}, y * load_up_to(sin + i, n));
    const Vec c = rounded(T{}, y * load_up_to(cos + apart + i, n)), d = rounded(T{}, x * load_up_to(sin + apart + i, n));
    store_up_to(to + i, a - b, n);
    store_up_to(to + other, c + d, n);
  }
}

template <class T>
inline void turn_heads(const winnow_rotary_rows& rows, const winnow_rotary_args& args, const T* cos, const T* sin, int64_t row,
                       int64_t token) {
  const T* from = static_cast<const T*>(rows.source) + row * rows.source_row + token * rows.source_token;
  T* to = static_cast<T*>(rows.target) + row * rows.target_row + token * rows.target_token;
  for (int64_t head = 0; head < rows.heads; ++head) {
    const T* source = from + head * rows.source_head;
    T* target = to + head * rows.target_head;
    turn(source, cos, sin, args.dim / 2, args.angles - args.dim / 2, target);
    if (args.rest) std::memcpy(target + args.dim, source + args.dim, static_cast<size_t>(args.rest) * sizeof(T));
  }
}

template <class T>
void rotary(const winnow_rotary_args& args, int64_t first, int64_t last) {
  for (int64_t each = first; each < last; ++each) {
    const int64_t row = each / args.tokens, token = each % args.tokens;
    const int64_t angles = row * args.angles_row + token * args.angles;
    const T* cos = static_cast<const T*>(args.cos) + angles;
    const T* sin = static_cast<const T*>(args.sin) + angles;
    turn_heads(args.queries, args, cos, sin, row, token);
    turn_heads(args.keys, args, cos, sin, row, token);
  }
}

}  // namespace
}  // namespace winnow
