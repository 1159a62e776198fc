// Which instruction set serves this process.
#pragma once

#include "runtime/kernels.hpp"

namespace winnow {

struct InstructionSet {
  const char* name;
  const Kernels& kernels;
  const PackedKernels& packed;
  const MatrixKernels& matrix;
};

// The one in use: the best this machine has, or what WINNOW_ISA names.
const InstructionSet& active_isa();

inline const Kernels& active_kernels() { return active_isa().kernels; }
inline const MatrixKernels& active_matrix() { return active_isa().matrix; }

// Use the one called `name`; false if it does not exist or this machine cannot run it.
bool select_isa(const char* name);

}  // namespace winnow
