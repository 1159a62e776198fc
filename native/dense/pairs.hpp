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

// Calls body(first, Count<size>) for blocks of at most kMost queries that cover n, of which 5, 6 and 7 are blocks of their own:
// everything is read once for them, and nothing for the padding.
template <int kMost, class Body>
inline void for_whole_blocks(int64_t n, const Body& body) {
  int64_t first = 0;
  const auto take = [&](auto size) {
    body(first, size);
    first += size;
  };
  if constexpr (kMost > 8) {
    while (n - first >= kMost - 1) take(Count<kMost>{});
  }
  while (n - first > 8) take(Count<8>{});
  switch (n - first) {
    case 5: return body(first, Count<5>{});
    case 6: return body(first, Count<6>{});
    case 7: return body(first, Count<7>{});
    default: return for_query_blocks(n - first, [&](int64_t, auto size) { body(first, size); });
  }
}

// The same for packed keys and values. Where that pays least, 5 to 7 queries are blocks of fewer or more: every further size of
// a block takes the compiler half a minute.
template <class T, class Body>
inline void for_blocks_of(int64_t n, const Body& body) {
  if constexpr (kInPairs<T> || kTurnsSums<5>) {
    for_whole_blocks<8>(n, body);
  } else {
    for_query_blocks(n, body);
  }
}

}  // namespace
}  // namespace winnow
