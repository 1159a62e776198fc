// Decode attention over all rows and heads of a layer.
#pragma once

#include "winnow_native.h"

namespace winnow {

// Throws std::bad_alloc; nothing else. `args` has been checked. Where keys are latents, queries are what asks those,
// [.., D + Dv], and the output is of sums of them, [.., D].
void attend(const winnow_decode_args& args);

}  // namespace winnow
