// Linear layers of many rows, on several threads.
#pragma once

#include <cstdint>

#include "linear/contract.hpp"

namespace winnow {

// Rows from which it is faster to round inputs and the weight to whole numbers than to multiply numbers as they lie.
constexpr int64_t kFewestManyRows = 33;

// `count` of the rows of a layer, from the `first` on.
LinearRows part_of(const winnow_linear_layer& layer, const LinearRows& all, int64_t first, int64_t count);

// All outputs of all rows. Throws std::bad_alloc.
void multiply_many_rows(const winnow_linear_layer& layer, const ManyRowsKernel& kernel, const LinearRows& all, int threads);

}  // namespace winnow
