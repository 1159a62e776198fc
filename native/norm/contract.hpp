// The promise of a norm function, whatever the instruction set.
#pragma once

#include <cstdint>

#include "winnow_native.h"

namespace winnow {

// Rows that are normalized: inputs, or where there are others, the sums of both, which are written, too. Where there are
// gates, outputs are gated by them.
struct NormRows {
  const void *inputs, *others;
  void* sums;
  const void* gates;
  void* outputs;
};

// Does the rows first to last - 1.
using NormFunction = void (*)(const winnow_norm&, const NormRows&, int64_t first, int64_t last);

}  // namespace winnow
