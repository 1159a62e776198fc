// Logits whose lanes are tokens, where that is faster than sums over lanes.
#pragma once

#include <cstdint>

#if defined(__AVX2__) && !defined(__AVX512F__)
#include "dense/avx2/token_scores.hpp"
#else
namespace winnow {
namespace {

template <int kQueries, class T>
constexpr int64_t kMostInTokenLanes = 0;
template <int kQueries, bool kBusy, class... Arguments>
void score_token_lanes(const Arguments&...) {}

template <int kQueries>
constexpr bool kTurnsSums = false;
template <int kQueries, class... Arguments>
void turn_sums(const Arguments&...) {}

}  // namespace
}  // namespace winnow
#endif
