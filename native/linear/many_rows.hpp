// Linear layers of many rows, on several threads.
#pragma once

#include <cstdint>

#include "linear/contract.hpp"

namespace winnow {

// `count` of the rows of a layer, from the `first` on.
LinearRows part_of(const winnow_linear_layer& layer, const LinearRows& all, int64_t first, int64_t count);

// A layer and the kernel for many rows of it.
struct ManyRowsLayer {
  const winnow_linear_layer& layer;
  const ManyRowsKernel& kernel;
};

// All outputs of all rows. Throws std::bad_alloc.
void multiply_many_rows(const ManyRowsLayer& layer, const LinearRows& all, int threads);

// All outputs of a layer, gated by those of another one. Throws std::bad_alloc.
void gate_many_rows(const ManyRowsLayer& gate, const ManyRowsLayer& up, const winnow_gate& by, const LinearRows& all,
                    int threads);

}  // namespace winnow
