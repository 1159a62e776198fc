// The promise of a rotating function, whatever the instruction set.
#pragma once

#include "sizes.hpp"
#include "winnow_native.h"

namespace winnow {

// Does rows first to last - 1 with the scratch of one row.
using RotateFunction = void (*)(const winnow_rotate_args&, int64_t first, int64_t last, float* scratch);

namespace {

// Rows that a thread takes at a time; each is little work.
constexpr int64_t kRotatedAtOnce = 256;

// Scratch of a row: itself, padded to whole vectors of any instruction set.
constexpr int64_t rotate_floats(int64_t dim) { return round_up(dim, 16); }

}  // namespace
}  // namespace winnow
