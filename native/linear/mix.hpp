// Mixtures of experts on several threads.
#pragma once

#include <cstdint>

#include "winnow_native.h"

namespace winnow {

// As winnow_mix, for numbers of experts that there are and layers that have kernels. Throws std::bad_alloc.
void mix(const winnow_mixture& mixture, int64_t tokens, const int64_t* experts, const float* weights, const void* inputs,
         void* outputs, int32_t threads);

}  // namespace winnow
