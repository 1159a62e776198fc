// New tokens' numbers, written behind those that a buffer holds.
#pragma once

#include "winnow_native.h"

namespace winnow {

// True if every row has room for the new tokens.
bool has_room(const winnow_append_args& args);

// False, and nothing is written, where a row has no room for the new tokens.
bool append(const winnow_append_args& args);

}  // namespace winnow
