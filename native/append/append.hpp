// New tokens' numbers, written behind those that a buffer holds.
#pragma once

#include "winnow_native.h"

namespace winnow {

// False, and nothing is written, where a row has no room for the new tokens.
bool append(const winnow_append_args& args);

}  // namespace winnow
