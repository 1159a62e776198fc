// Dot products of packed numbers as they are, without unpacking them, where the machine has instructions for it.
//
// For models in 16 bits only: queries and weights are rounded to 2^-15 of the largest or finer, which is finer than
// what they were computed from but coarser than fp32.
#pragma once

#include <cstdint>
#include <type_traits>

#include "attend/contract.hpp"
#include "dense/pairs.hpp"
#include "packed/format.hpp"

#if defined(__AVX512VNNI__)
#include "packed/avx512/int8_keys.hpp"
#include "packed/avx512/int8_values.hpp"
namespace winnow {
namespace {

// True where keys and values are integers with a scale for each slot, whose products need nothing else, or numbers that
// meet in pairs.
template <class T>
bool multiplies_as_they_lie(const Shape& shape, const Chunk& chunk) {
  if (!chunk.part) return keys_in_pairs<T>(shape.key_dim) && values_in_pairs<T>(shape.value_dim);
  const auto integers = [](const winnow_rows& rows, int64_t dim) {
    return !std::is_same_v<T, float> && rows.scaling == WINNOW_PER_SLOT && whole_blocks(rows, dim);
  };
  const winnow_rows &keys = chunk.part->keys, &values = chunk.part->values;
  const bool keys_do = (meet_as_they_are(keys) && keys_in_pairs<T>(keys.kept)) ||
                       (integers(keys, keys.kept) && sums_fit(keys, keys.kept));
  const bool values_do = (are_numbers(values) && values_in_pairs<T>(shape.value_dim)) || integers(values, shape.value_dim);
  return keys_do && values_do;
}

}  // namespace
}  // namespace winnow
#else
namespace winnow {
namespace {

template <class T>
bool scores_int8(const winnow_rows&, int64_t) {
  return false;
}
template <class T>
bool weighs_int8(const winnow_rows&, int64_t) {
  return false;
}
template <int kQueries, class T, class... Arguments>
bool score_int8(const Arguments&...) {
  return false;
}
template <int kQueries, class T, class... Arguments>
bool weigh_int8(const Arguments&...) {
  return false;
}
template <class T>
bool multiplies_as_they_lie(const Shape&, const Chunk&) {
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

#if defined(WINNOW_ZEN)
#include "packed/avx512/pruned_lanes.hpp"
#else
namespace winnow {
namespace {

template <int kQueries, class T, class... Arguments>
bool score_in_lanes(const Arguments&...) {
  return false;
}

}  // namespace
}  // namespace winnow
#endif
