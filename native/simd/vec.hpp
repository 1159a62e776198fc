// Vec, the vector of fp32 lanes in terms of which all kernels are written, as wide as the instruction set that this
// file is compiled for; WINNOW_PORTABLE asks for the one that every machine has.
//
// Whatever depends on it has internal linkage: code compiled for one instruction set must never be the copy that the
// linker keeps for the others.
#pragma once

#if defined(__AVX512F__) && !defined(WINNOW_PORTABLE)
#include "simd/avx512.hpp"
#elif defined(__AVX2__) && !defined(WINNOW_PORTABLE)
#include "simd/avx2.hpp"
#else
#include "simd/portable.hpp"
#endif
