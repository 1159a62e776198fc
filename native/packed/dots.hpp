// Dot products of packed numbers as they are, without unpacking them, where the machine has instructions for it.
//
// For models in 16 bits only: queries and weights are rounded to 2^-15 of the largest or finer, which is finer than
// what they were computed from but coarser than fp32.
#pragma once

#include <cstdint>

#if defined(__AVX512VNNI__)
#include "packed/avx512/int8_keys.hpp"
#include "packed/avx512/int8_values.hpp"
#else
namespace winnow {
namespace {

template <int kQueries, class T, class... Arguments>
bool score_int8(const Arguments&...) {
  return false;
}
template <int kQueries, class T, class... Arguments>
bool weigh_int8(const Arguments&...) {
  return false;
}

}  // namespace
}  // namespace winnow
#endif

#if defined(__AVX512VBMI2__) && defined(__AVX512BF16__)
#include "packed/avx512/pruned_keys.hpp"
#else
namespace winnow {
namespace {

template <int kQueries, class T, class... Arguments>
int64_t score_pruned(const Arguments&...) {
  return 0;
}

}  // namespace
}  // namespace winnow
#endif
