// Rows of numbers -> fp32 after a Walsh–Hadamard transform.
#pragma once

#include <cstring>

#include "rotate/contract.hpp"
#include "simd/hadamard.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

template <class T>
void rotate(const winnow_rotate_args& args, int64_t first, int64_t last, float* scratch) {
  const int64_t dim = args.dim;
  const bool whole = dim % Vec::width == 0;
  for (int64_t row = first; row < last; ++row) {
    const T* from = static_cast<const T*>(args.rows) + row * dim;
    float *to = args.output + row * dim, *vectors = whole ? to : scratch;
    for (int64_t d = 0; d < dim; d += Vec::width) store(vectors + d, load_up_to(from + d, dim - d));
    transform_row(vectors, dim, Vec::width);
    if (!whole) std::memcpy(to, vectors, static_cast<size_t>(dim) * sizeof(float));
  }
}

}  // namespace
}  // namespace winnow
