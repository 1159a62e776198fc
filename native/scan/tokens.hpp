// Tokens that meet states together, in fp32, and what they are to each other: what one adds counts for those after it.
#pragma once

#include <cstdint>

#include "scan/head.hpp"
#include "scan/steps.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "winnow_native.h"

namespace winnow {
namespace {

// From a token's numbers to the next one's: a line more than they need, so that those of all share no set of a cache.
constexpr int64_t kScanRow = WINNOW_SCAN_STATE + 16;

// Numbers of tokens, and by what sums and inputs are multiplied.
template <int kTokens>
struct ScanTokens {
  alignas(64) float enter[kTokens][kScanRow], leave[kTokens][kScanRow];
  float steps[kTokens];
  // What is kept of the state before all of them, up to a token and over all.
  float known[kTokens], kept;
  // What a token reads of what one before it, or itself, added.
  float read[kTokens][kTokens];
  // What is kept of that after all of them.
  float added[kTokens];
};

// Numbers filled up to whole vectors with zeros; zeros alone where there are none.
template <class T>
inline void widen_numbers(const T* from, int64_t dim, float* to) {
  for (int64_t i = 0; i < dim; i += Vec::width) store(to + i, from ? load_up_to(from + i, dim - i) : broadcast(0.0f));
}

// Products of what each token reads by and what it and those before it enter by.
template <int kTokens>
inline void multiply_numbers(int64_t dim, ScanTokens<kTokens>& tokens) {
  Vec sums[kTokens][kTokens];
  unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
    unroll<t + 1>([&](auto s) __attribute__((always_inline)) { sums[t][s] = broadcast(0.0f); });
  });
  for (int64_t i = 0; i < dim; i += Vec::width) {
    Vec enter[kTokens];
    unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
      enter[t] = load(tokens.enter[t] + i);
      const Vec leave = load(tokens.leave[t] + i);
      unroll<t + 1>([&](auto s) __attribute__((always_inline)) { sums[t][s] = fma(leave, enter[s], sums[t][s]); });
    });
  }
  unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
    unroll<t + 1>([&](auto s) __attribute__((always_inline)) { tokens.read[t][s] = lane_sum(sums[t][s]); });
  });
}

// Those from the first on; beyond the last there are steps of nothing, which change nothing.
template <int kTokens, class T>
void read_tokens(const winnow_scan_args& args, const ScanHead<T>& head, int64_t first, const ScanSteps& steps,
                 ScanTokens<kTokens>& to) {
  for (int64_t t = 0; t < kTokens; ++t) {
    const int64_t token = first + t;
    const bool is = token < args.tokens;
    widen_numbers(is ? head.enter + token * args.enter_token : nullptr, args.state_dim, to.enter[t]);
    widen_numbers(is ? head.leave + token * args.leave_token : nullptr, args.state_dim, to.leave[t]);
  }
  multiply_numbers(args.state_dim, to);
  to.kept = 1.0f;
  for (int64_t t = 0; t < kTokens; ++t) {
    const bool is = first + t < args.tokens;
    const float kept = is ? steps.kept[(first + t) % Vec::width] : 1.0f;
    to.steps[t] = is ? steps.steps[(first + t) % Vec::width] : 0.0f;
    to.known[t] = to.kept *= kept;
    for (int64_t s = 0; s < t; ++s) to.added[s] *= kept;
    to.added[t] = 1.0f;
    for (int64_t s = 0; s <= t; ++s) to.read[t][s] *= to.added[s];
  }
}

}  // namespace
}  // namespace winnow
