// Which instruction set serves this process.
#pragma once

#include "runtime/kernels.hpp"

namespace winnow {

// The kernels in use: the best this machine has, or what WINNOW_ISA names.
const Kernels& active_kernels();

// Use the kernels called `name`; false if they do not exist or this machine cannot run them.
bool select_kernels(const char* name);

}  // namespace winnow
