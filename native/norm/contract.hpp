// The promise of a norm function, whatever the instruction set.
#pragma once

#include <cstdint>

#include "winnow_native.h"

namespace winnow {

// Does the rows first to last - 1.
using NormFunction = void (*)(const winnow_norm&, const void* inputs, void* outputs, int64_t first, int64_t last);

}  // namespace winnow
