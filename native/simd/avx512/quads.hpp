// Products of bytes, 64 to an instruction; needs AVX-512 VNNI. Inline assembly: the intrinsic makes GCC copy every sum twice.
#pragma once

#include <immintrin.h>

namespace winnow {
namespace {

// sum[i] + the products of the four bytes of lane i of numbers, which are unsigned, with those of others, which are not.
inline __m512i add_quads(__m512i sum, __m512i numbers, __m512i others) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(numbers), "v"(others));
  return sum;
}

}  // namespace
}  // namespace winnow
