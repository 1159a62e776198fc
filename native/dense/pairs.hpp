// Numbers of keys and values as they are, where the processor multiplies pairs of 16 bits as often as numbers of fp32.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attend/queries.hpp"
#include "dense/token_scores.hpp"
#include "simd/element.hpp"
#include "simd/unroll.hpp"

#ifdef WINNOW_ZEN
#include "dense/avx512/pair_keys.hpp"
#include "dense/avx512/pair_values.hpp"
namespace winnow {
namespace {

// True for models whose numbers are multiplied in pairs.
template <class T>
constexpr bool kInPairs = std::is_same_v<T, Bf16>;

// True where keys, or values, of so many channels are.
template <class T>
bool keys_in_pairs(int64_t dim) {
  return kInPairs<T> && keys_are_pairs(dim);
}
template <class T>
bool values_in_pairs(int64_t dim) {
  return kInPairs<T> && values_are_pairs(dim);
}

}  // namespace
}  // namespace winnow
#else
namespace winnow {
namespace {

template <class T>
constexpr bool kInPairs = false;
template <class T>
bool keys_in_pairs(int64_t) {
  return false;
}
template <class T>
bool values_in_pairs(int64_t) {
  return false;
}
template <int kQueries, class T, class... Arguments>
bool score_numbers(const Arguments&...) {
  return false;
}
template <int kQueries, class T, class... Arguments>
bool weigh_numbers(const Arguments&...) {
  return false;
}

}  // namespace
}  // namespace winnow
#endif

namespace winnow {
namespace {

// True where 5, 6 and 7 queries are blocks of their own: in pairs, and where sums are turned.
template <class T>
constexpr bool kWholeBlocks = kInPairs<T> || kTurnsSums<5>;

// Calls body(first, Count<size>) for blocks that cover n queries.
template <class T, class Body>
inline void for_blocks_of(int64_t n, const Body& body) {
  if constexpr (kWholeBlocks<T>) {
    int64_t first = 0;
    for (; n - first > 8; first += 8) body(first, Count<8>{});
    switch (n - first) {
      case 5: return body(first, Count<5>{});
      case 6: return body(first, Count<6>{});
      case 7: return body(first, Count<7>{});
      default: return for_query_blocks(n - first, [&](int64_t, auto size) { body(first, size); });
    }
  } else {
    for_query_blocks(n, body);
  }
}

}  // namespace
}  // namespace winnow
