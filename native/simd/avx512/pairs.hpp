// Products of pairs of 16-bit numbers, 32 numbers to an instruction. Inline assembly: the intrinsics make GCC copy
// accumulators.
#pragma once

#include <immintrin.h>

namespace winnow {
namespace {

// sum[i] + a[2·i]·b[2·i] + a[2·i + 1]·b[2·i + 1], of bf16; needs AVX-512 BF16.
struct Bf16Pairs {
  using Sum = __m512;

  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum add(Sum sum, __m512i a, __m512i b) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
  }
};

// The same of int16; needs AVX-512 VNNI.
struct Int16Pairs {
  using Sum = __m512i;

  static Sum zero() { return _mm512_setzero_si512(); }
  static Sum add(Sum sum, __m512i a, __m512i b) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
  }
};

}  // namespace
}  // namespace winnow
