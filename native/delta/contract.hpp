// The promise of a function of delta rules, whatever the instruction set.
#pragma once

#include <cstdint>

#include "sizes.hpp"
#include "winnow_native.h"

namespace winnow {

struct DeltaKernel {
  // Does the blocks of columns first to last - 1, counted over all value heads and rows: columns of a state are independent.
  void (*run)(const winnow_delta_args&, int64_t first, int64_t last);
  int64_t columns;  // of a block
};

namespace {

constexpr int64_t delta_blocks(const DeltaKernel& kernel, const winnow_delta_args& args) {
  return args.rows * args.value_heads * divide_up(args.value_dim, kernel.columns);
}

}  // namespace
}  // namespace winnow
