// Latents whose numbers are multiplied in pairs, where the processor does that as often as with numbers of fp32.
#pragma once

#ifdef WINNOW_ZEN
#include "latent/avx512/pair_chunk.hpp"
#else
namespace winnow {
namespace {

template <class T, class... Arguments>
bool latents_in_pairs(const Arguments&...) {
  return false;
}

}  // namespace
}  // namespace winnow
#endif
