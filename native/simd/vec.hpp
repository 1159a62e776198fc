// Vec, the vector of fp32 lanes in terms of which all kernels are written, as wide as the instruction set that this
// file is compiled for; WINNOW_PORTABLE asks for the one that every machine has.
//
// All that depends on it has internal linkage: code compiled for one instruction set must never be the copy that the
// linker keeps for the others.
#pragma once

#include <cstdint>

#if defined(__AVX512F__) && !defined(WINNOW_PORTABLE)
#include "simd/avx512.hpp"
#elif defined(__AVX2__) && !defined(WINNOW_PORTABLE)
#include "simd/avx2.hpp"
#else
#include "simd/portable.hpp"
#endif

namespace winnow {
namespace {

// Two vectors' worth of consecutive elements, in an order that is best for their type, and the inverse.
template <class T>
inline void load_pair(const T* p, Vec& a, Vec& b) {
  a = load(p);
  b = load(p + Vec::width);
}
template <class T>
inline void store_pair(T* p, Vec a, Vec b) {
  store(p, a);
  store(p + Vec::width, b);
}

// The first n lanes, or all if there are more; the others are zero and their memory is not touched.
template <class T>
inline Vec load_up_to(const T* p, int64_t n) {
  return n < Vec::width ? load_first(p, n) : load(p);
}

// The first n lanes, or all if there are more.
template <class T>
inline void store_up_to(T* p, Vec a, int64_t n) {
  n < Vec::width ? store_first(p, a, n) : store(p, a);
}

// A number as an element of that type holds it.
inline Vec rounded(float, Vec a) { return a; }
template <class Half>
inline Vec rounded(Half, Vec a) {
  return widen(Half{}, narrow(Half{}, a));
}

}  // namespace
}  // namespace winnow
