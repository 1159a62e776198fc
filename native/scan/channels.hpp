// Channels of a head that meet tokens: as many as a vector has lanes, so that what they read becomes whole vectors.
#pragma once

#include <cstdint>

#include "scan/tokens.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Channels that share each number of a token that is loaded: more of them have no registers for their sums.
constexpr int kScanRows = 2;

// What each token adds to each channel, and what each channel has for it.
template <int kTokens>
struct ScanChannels {
  alignas(64) float adds[kTokens][Vec::width];
  Vec found[kTokens][Vec::width];
};

// Each line once.
inline void ask_for_state(const float* numbers, int64_t at) {
  const char* ahead = reinterpret_cast<const char*>(numbers + at) + kPrefetchBytes;
  if (at * static_cast<int64_t>(sizeof(float)) % kLine == 0) prefetch(ahead);
}

// The states of channels from the first on, of so many whole vectors' numbers: read for all tokens, changed by all, and stored
// once. A single token waits for memory, others find states next to the processor.
template <int kTokens>
__attribute__((always_inline)) inline void change_states(float* (&states)[kScanRows], int64_t dim,
                                                         const ScanTokens<kTokens>& tokens, int64_t first,
                                                         ScanChannels<kTokens>& channels) {
  Vec adds[kTokens][kScanRows], found[kTokens][kScanRows];
  unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
    unroll<kScanRows>([&](auto r) __attribute__((always_inline)) {
      adds[t][r] = broadcast(channels.adds[t][first + r]);
      found[t][r] = broadcast(0.0f);
    });
  });
  const Vec kept = broadcast(tokens.kept);
  for (int64_t i = 0; i < dim; i += Vec::width) {
    Vec numbers[kScanRows];
    unroll<kScanRows>([&](auto r) __attribute__((always_inline)) {
      if (kTokens == 1) ask_for_state(states[r], i);
      numbers[r] = load(states[r] + i);
    });
    unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
      Vec leave = load(tokens.leave[t] + i);
      load_once(leave);
      unroll<kScanRows>([&](auto r) __attribute__((always_inline)) { found[t][r] = fma(numbers[r], leave, found[t][r]); });
    });
    unroll<kScanRows>([&](auto r) __attribute__((always_inline)) { numbers[r] = numbers[r] * kept; });
    unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
      Vec enter = load(tokens.enter[t] + i);
      load_once(enter);
      unroll<kScanRows>([&](auto r) __attribute__((always_inline)) { numbers[r] = fma(adds[t][r], enter, numbers[r]); });
    });
    unroll<kScanRows>([&](auto r) __attribute__((always_inline)) { store(states[r] + i, numbers[r]); });
  }
  unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
    unroll<kScanRows>([&](auto r) __attribute__((always_inline)) { channels.found[t][first + r] = found[t][r]; });
  });
}

}  // namespace
}  // namespace winnow
