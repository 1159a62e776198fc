// Products of pairs whose lanes are tokens: rows change places with channels while they are read, so that nothing is
// summed over lanes.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "simd/avx512/sixteen_rows.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Channels that are multiplied at once: 16 bytes of a row.
constexpr int64_t kLaneChannels = 8;

// Vectors of tokens whose sums with so many queries stay in registers.
constexpr int token_vectors(int queries) { return queries > 8 ? 1 : 2; }

// sums[q][v] += the products of kLaneChannels channels of 16 bits: of rows from `rows` on, `stride` bytes apart, and of
// queries that are kApart numbers apart.
template <int kQueries, int64_t kApart, class Pairs>
__attribute__((always_inline)) inline void add_channels(
    const void* queries, const char* rows, int64_t stride,
    typename Pairs::Sum (&sums)[kQueries * token_vectors(kQueries)]) {
  constexpr int kVectors = token_vectors(kQueries);
  __m512i pairs[kVectors][4];
  unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
    const SixteenRows from(rows + v * Vec::width * stride, stride);
    __m512i pieces[4];
    unroll<4>([&](auto k) __attribute__((always_inline)) {
      pieces[k] = from.four<k>([](const char* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); });
    });
    turn_rows(pieces, pairs[v]);
  });
  unroll<4 * kQueries>([&](auto i) __attribute__((always_inline)) {
    constexpr int64_t pair = i / kQueries, q = i % kQueries;
    const __m512i query = broadcast_four(static_cast<const char*>(queries) + 2 * (q * kApart + 2 * pair));
    unroll<kVectors>([&](auto v) {
      constexpr int sum = q * kVectors + v;
      sums[sum] = Pairs::add(sums[sum], pairs[v][pair], query);
    });
  });
}

}  // namespace
}  // namespace winnow
