// Logits of many queries whose lanes are tokens: they are found so, or turned.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "attend/contract.hpp"
#include "simd/avx2/token_lanes.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// True for so many queries that the logits of a token are a vector, which is to be turned.
template <int kQueries>
constexpr bool kTurnsSums = kQueries >= 5;

// Channels up to which keys are scored faster with a token in every lane (measured): by so many queries that sums hardly
// wait for each other, and of a type that becomes fp32 as easily.
template <int kQueries, class T>
constexpr int64_t kMostInTokenLanes = !kTurnsSums<kQueries>     ? 0
                                      : std::is_same_v<T, Int8> ? std::numeric_limits<int64_t>::max()
                                      : std::is_same_v<T, Bf16> ? 64
                                                                : 0;

// Where channel kChannel of 2·width lies in the queries' order, see gather_queries.
template <class T>
constexpr int64_t place_of(int channel, int queries) {
  const bool dealt = std::is_same_v<T, Bf16>;
  const int vector = dealt ? channel % 2 : channel / Vec::width, lane = dealt ? channel / 2 : channel % Vec::width;
  return vector * queries * Vec::width + lane;
}

// logits[q·kLogitStride + t] = query[q] · keys[t] for a vector of tokens, whose channels are whole pairs of vectors.
template <int kQueries, bool kBusy, class T>
inline void score_token_lanes(const float* query, const T* keys, int64_t dim, const char* ahead, float* logits) {
  constexpr int64_t kPair = 2 * Vec::width, kBytes = static_cast<int64_t>(sizeof(T));
  constexpr int kPieceChannels = 16 / static_cast<int>(kBytes), kParts = 4 / static_cast<int>(kBytes);
  Vec sums[kQueries];
  unroll<kQueries>([&](auto q) { sums[q] = broadcast(0.0f); });
  for (int64_t d = 0; d < dim; d += kPair) {
    prefetch_span<kPair * Vec::width * kBytes, kBusy>(ahead + d * Vec::width * kBytes);
    const float* numbers = query + d * kQueries;
    unroll<kPair / kPieceChannels>([&](auto piece) __attribute__((always_inline)) {
      __m256i lanes[4];
      turn_eight(reinterpret_cast<const char*>(keys + d + piece * kPieceChannels), dim * kBytes, lanes);
      unroll<kPieceChannels>([&](auto channel) __attribute__((always_inline)) {
        const Vec key = channel_of<channel % kParts>(T{}, lanes[channel / kParts]);
        constexpr int64_t place = place_of<T>(piece * kPieceChannels + channel, kQueries);
        unroll<kQueries>([&](auto q) __attribute__((always_inline)) {
          sums[q] = fma(key, broadcast(numbers[place + q * Vec::width]), sums[q]);
        });
      });
    });
  }
  unroll<kQueries>([&](auto q) { store(logits + q * kLogitStride, sums[q]); });
}

// The same of a vector of tokens, where products(t) are those of a token with all queries.
template <int kQueries, class Products>
__attribute__((always_inline)) inline void turn_sums(const Products& products, float* logits) {
  alignas(32) float sums[Vec::width][Vec::width];
  for (int64_t t = 0; t < Vec::width; ++t) store(sums[t], products(t));
  for_even_parts<kQueries, 4>([&](auto first, auto size) {
    __m256i lanes[4];
    turn_eight(reinterpret_cast<const char*>(sums[0] + first), sizeof sums[0], lanes);
    unroll<size>([&](auto q) { store(logits + (first + q) * kLogitStride, Vec{_mm256_castsi256_ps(lanes[q])}); });
  });
}

}  // namespace
}  // namespace winnow
