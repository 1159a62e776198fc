// The promise of a rotary function, whatever the instruction set.
#pragma once

#include <cstdint>

#include "winnow_native.h"

namespace winnow {

// Does the tokens first to last - 1, counted over all rows of a batch.
using RotaryFunction = void (*)(const winnow_rotary_args&, int64_t first, int64_t last);

}  // namespace winnow
