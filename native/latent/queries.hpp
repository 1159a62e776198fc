// The two parts of what asks latents: channels of latents, and rotated channels.
#pragma once

#include <cstdint>

#include "attend/contract.hpp"
#include "attend/queries.hpp"
#include "latent/scratch.hpp"
#include "packed/queries.hpp"
#include "simd/hadamard.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// A part of a query's channels, as if it were all of them.
inline Shape of_channels(const Shape& shape, int64_t dim) {
  Shape part = shape;
  part.key_dim = dim;
  part.query_width = round_up(dim, 16);
  return part;
}

// The channels from `first` on.
template <class T>
inline Queries from_channel(Queries queries, int64_t first) {
  queries.data = static_cast<const T*>(queries.data) + first;
  return queries;
}

// A block of rotated channels, in the coordinates of a packed part where there is one.
template <int kQueries, class T>
inline void gather_rotated(const Shape& shape, const winnow_part* part, const Queries& queries, int64_t first, float* block) {
  const int64_t dim = rotated_dim(shape);
  gather_queries<kQueries, float, T>(of_channels(shape, dim), from_channel<T>(queries, shape.value_dim), first, block);
  if (!part || !part->values.rotated) return;
  for (int64_t i = 0; i < kQueries; ++i) transform_row(block + i * Vec::width, dim, kQueries * Vec::width);
}

}  // namespace
}  // namespace winnow
