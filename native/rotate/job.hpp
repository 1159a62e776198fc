// Rows of a rotating call, handed out to threads.
#pragma once

#include "rotate/contract.hpp"

namespace winnow {

// Throws std::bad_alloc.
void rotate_rows(const winnow_rotate_args& args, RotateFunction function);

}  // namespace winnow
