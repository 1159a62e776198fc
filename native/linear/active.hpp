// Kernels of the instruction set in use for a linear layer.
#pragma once

#include <cmath>
#include <cstdint>

#include "linear/contract.hpp"
#include "linear/many_rows.hpp"
#include "runtime/dispatch.hpp"
#include "runtime/kernels.hpp"
#include "sizes.hpp"
#include "winnow_native.h"

namespace winnow {

// Bytes of a weight that are worth another thread.
constexpr int64_t kFewestBytes = 64 * 1024;

// Null where there is none.
inline LinearFunction linear_of(const winnow_linear_layer& layer) {
  const Kernels& kernels = active_kernels();
  if (layer.bits < 8) {
    const LinearFunction in_tiles = active_matrix().few_bits[layer.dtype].of_bits[layer.bits - 4];
    return in_tiles ? in_tiles : kernels.linear_few_bits[layer.dtype].of_bits[layer.bits - 4];
  }
  return (layer.bits == 8 ? kernels.linear_int8 : kernels.linear)[layer.dtype];
}

inline bool is_defined(const winnow_gate& gate) {
  const bool known = gate.activation >= WINNOW_SWISH && gate.activation <= WINNOW_GELU;
  return known && std::isfinite(gate.alpha) && gate.alpha > 0 && gate.limit >= 0;
}

inline bool serves(const ManyRowsKernel& kernel, const winnow_linear_layer& layer, int64_t rows) {
  return kernel.multiply && rows >= kernel.fewest_rows && layer.inputs % kernel.inputs == 0;
}

// The kernel for so many rows, if there are many, or several, and there is one for them.
inline const ManyRowsKernel* kernel_of_many(const winnow_linear_layer& layer, int64_t rows) {
  const MatrixKernels& kernels = active_matrix();
  const ManyRowsKernel &several = kernels.several_rows.of(layer), &many = kernels.many_rows.of(layer);
  if (rows <= several.most_rows && serves(several, layer, rows)) return &several;
  return serves(many, layer, rows) ? &many : nullptr;
}

// Threads that reading so many outputs of a layer's weight is worth.
inline int threads_for(const winnow_linear_layer& layer, int64_t outputs, int32_t threads) {
  const int64_t bits = layer.bits == 16 ? 8 * kElementBytes[layer.dtype] : layer.bits;
  return static_cast<int>(least(threads, divide_up(layer.inputs * outputs * bits, 8 * kFewestBytes)));
}

}  // namespace winnow
