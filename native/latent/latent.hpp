// Decode attention of heads that share latents.
#pragma once

#include "winnow_native.h"

namespace winnow {

// Throws std::bad_alloc; nothing else. `args` has been checked, and has `latent`.
void attend_latents(const winnow_decode_args& args);

}  // namespace winnow
