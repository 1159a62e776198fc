// Products of packed integers with queries and weights of 16 bits.
//
// Only where the machine multiplies bytes and adds four products up in one instruction (AVX-512 VNNI), and only for
// models in 16 bits: queries and weights are rounded to 2^-16 of the largest, which is finer than what they were
// computed from but coarser than fp32.
#pragma once

#include "attend/contract.hpp"

#if defined(__AVX512VNNI__)
#include "packed/avx512/int8_keys.hpp"
#include "packed/avx512/int8_values.hpp"
#endif

namespace winnow {
namespace {

#if defined(__AVX512VNNI__)
constexpr bool kIntegerDots = true;
#else
constexpr bool kIntegerDots = false;

// Named where they would be used, never instantiated.
template <int kQueries, bool kSigned, class... Arguments>
void score_words(Arguments...);
template <int kQueries, class... Arguments>
void weigh_words(Arguments...);
#endif

// Whether rows of `count` numbers are whole chunks of integers.
inline bool whole_chunks(const winnow_rows& rows, int64_t count) {
  return rows.bits != 16 && !rows.masks && count > 0 && count * rows.bits % 128 == 0;
}

// Whether the products of keys of `count` numbers with words, which are below 2^15, fit into 32 bits. On the way there
// sums may wrap around.
inline bool sums_fit(const winnow_rows& rows, int64_t count) {
  const int64_t most = rows.scaling == WINNOW_PER_SLOT ? 1 << (rows.bits - 1) : (1 << rows.bits) - 1;
  return count * most <= 1 << 16;
}

}  // namespace
}  // namespace winnow
