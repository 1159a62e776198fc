// Channels of a few rows of inputs and of a weight, and products of one of its rows.
#pragma once

#include <cstdint>
#include <type_traits>

#include "linear/channels.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/processor.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

#ifdef __AVX512BF16__
#include "linear/avx512/channels.hpp"
#endif

namespace winnow {
namespace {

// Rows of inputs that meet a row of the weight at a time.
constexpr int kMostAtOnce = 8;

template <class T, class W>
struct ChannelsOf {
  using Type = SingleChannels<T, W>;
};
#ifdef __AVX512BF16__
template <class W>
struct ChannelsOf<Bf16, W> {
  using Type = std::conditional_t<kZen, PairedChannels<W>, SingleChannels<Bf16, W>>;
};
#endif

// The channels [first, last) of rows of inputs, of type T, and of the weight, of type W, each `stride` channels long.
template <class T, class W>
struct ChannelBlock {
  const T* inputs;
  const W* weight;
  int64_t rows, outputs, stride;
  int64_t first, last;
  int64_t ahead;  // bytes from a line of the weight to the one that is asked for with it
};

// sums[r] of kRows rows of inputs with one of the weight.
template <int kRows, class T, class W>
inline void multiply(const ChannelBlock<T, W>& block, const T* const (&inputs)[kRows], const W* weight, Vec (&sums)[kRows]) {
  using Channels = typename ChannelsOf<T, W>::Type;
  constexpr int64_t kTogether = Channels::kTogether, kBytes = kTogether * static_cast<int64_t>(sizeof(W));
  // With many rows a loop is long enough for sums to wait for themselves; with few the next loop begins meanwhile.
  constexpr int kSums = kRows < kMostAtOnce || Vec::width < 16 ? 1 : 2;
  Vec parts[kRows * kSums];
  unroll<kRows * kSums>([&](auto i) __attribute__((always_inline)) { parts[i] = broadcast(0.0f); });
  int64_t d = block.first;
  for (; d + kSums * kTogether <= block.last; d += kSums * kTogether) {
    unroll<kSums>([&](auto s) __attribute__((always_inline)) {
      const int64_t at = d + s * kTogether;
      if constexpr (kRows > 1 || !kForesees) {
        prefetch_span<kBytes, false>(reinterpret_cast<const char*>(weight + at) + block.ahead);
      }
      const auto numbers = Channels::weight(weight + at);
      unroll<kRows>([&](auto r) __attribute__((always_inline)) {
        parts[r * kSums + s] = Channels::add(parts[r * kSums + s], numbers, Channels::input(inputs[r] + at));
      });
    });
  }
  for (; d < block.last; d += kTogether) {
    const auto numbers = Channels::weight_up_to(weight + d, block.last - d);
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      const auto input = Channels::input_up_to(inputs[r] + d, block.last - d);
      parts[r * kSums] = Channels::add(parts[r * kSums], numbers, input);
    });
  }
  unroll<kRows>([&](auto r) __attribute__((always_inline)) {
    sums[r] = parts[r * kSums];
    unroll<kSums - 1>([&](auto s) __attribute__((always_inline)) { sums[r] = sums[r] + parts[r * kSums + s + 1]; });
  });
}

}  // namespace
}  // namespace winnow
