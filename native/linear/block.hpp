// Products of a few rows of inputs with a few rows of a weight.
#pragma once

#include <cstdint>

#include "linear/channels.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/processor.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

#ifdef WINNOW_ZEN
#include "linear/avx512/channels.hpp"
#include "linear/avx512/looked_up.hpp"
#endif

namespace winnow {
namespace {

// Rows of inputs that meet rows of the weight at a time. Twelve and two of the weight have 24 sums, which fill the registers of
// AVX-512 with what they are made of; on Zen 5 that is faster than to read the weight again for four of them.
constexpr int kMostAtOnce = kZenGeneration == 5 ? 12 : 8;

// Rows of inputs whose products may take longer than the weight to come.
constexpr int kManyAtOnce = 5;

template <class T, class W>
struct ChannelsOf {
  using Type = SingleChannels<T, W>;
};
#ifdef WINNOW_ZEN
template <class W>
struct ChannelsOf<Bf16, W> {
  using Type = PairedChannels<W>;
};
#endif

// The same for so few rows that what a number becomes for a product counts, and not the products. Zen 5 reads rows side by side
// for two rows of inputs, too, as fast as for one.
constexpr int kFewRows = kZenGeneration == 5 ? 1 : 2;
template <class T, class W>
struct ChannelsOfFew : ChannelsOf<T, W> {};
#ifdef WINNOW_ZEN
template <>
struct ChannelsOfFew<Bf16, Int8> {
  using Type = LookedUpChannels;
};
#endif

// The channels [first, last) of rows of the weight, each `stride` channels long.
template <class W>
struct WeightBlock {
  const W* weight;
  int64_t outputs, stride;
  int64_t first, last;

  int64_t channels() const { return last - first; }
  int64_t row_bytes() const { return stride * static_cast<int64_t>(sizeof(W)); }

  // Where those of kOutputs rows from `output` on begin; the last that there is stands for those that there are not.
  template <int kOutputs>
  void point_at(int64_t output, const W* (&at)[kOutputs]) const {
    for (int o = 0; o < kOutputs; ++o) at[o] = weight + least(output + o, outputs - 1) * stride + first;
  }
};

// Requests for what is read after a line of a weight's row, while rows of the weight are read side by side; 0 is none.
struct Requests {
  int64_t groups;  // Into the second-level cache: of so many groups of rows further on; where tiles share, see SharedAhead.
  int64_t near;    // Into the first-level cache: so many bytes further on.
  bool turn;       // Behind the end of a row's channels these are of the next group of rows.
};

// Those where kRows rows of inputs meet a line of numbers of type W.
template <int kRows, class W>
constexpr Requests requests() {
  if (kZenGeneration == 5) {
    // Zen 5 foresees a few rows side by side as well as one. Few rows of inputs are done before a request of a group ahead is
    // met, but with bytes, which take longer to be multiplied; many take so long that all of its memory's time can be hidden.
    constexpr bool kBytes = sizeof(W) == 1;
    if (kRows >= kManyAtOnce) return kBytes ? Requests{4, 768, false} : Requests{3, 2304, true};
    return {kBytes ? 2 : 0, kRows > 1 ? 1536 : 0, true};
  }
  // Many rows of inputs leave time enough to wait for the second level.
  return {1, kRows < kManyAtOnce ? 512 : 0, false};
}

// True where tiles of rows share the requests into the second-level cache, which has room for two blocks of the weight: while
// the first two meet a block, each asks for half of the next one. Else memory had no time for the first, and rest for others.
constexpr bool kShareRequests = kZenGeneration == 5;

// Of rows of the weight that are read side by side, the one whose lines are asked for `bytes` further on; -1 if each is, of a
// later group.
struct SharedAhead {
  int output = -1;
  int64_t bytes = 0;
};

// Where a line lies: `rest` bytes before the end of its row's channels, which are `row` bytes; the rows that come after those
// read side by side are `group` bytes on.
struct LinePlace {
  int64_t rest, row, group;
};

// Asks for what is read after a line of a weight's row.
template <int kRows, int kOutputs, bool kShared, int64_t kBytes, class W>
inline void ask_ahead(const W* numbers, const LinePlace& place) {
  const auto* line = reinterpret_cast<const char*>(numbers);
  if constexpr (kOutputs > 1) {
    constexpr Requests kAhead = requests<kRows, W>();
    if (kAhead.groups > 0 && !kShared) prefetch_for_later(line + kAhead.groups * place.group, kBytes);
    const bool turns = kAhead.turn && kAhead.near >= place.rest;
    if (kAhead.near > 0) prefetch(line + kAhead.near + (turns ? place.group - place.row : 0));
  } else if constexpr (kRows > 1 || !kForesees) {
    prefetch_span<kBytes, false>(line + kPrefetchBytes);
  }
}

// Products that are under way at a time at the least: each takes four cycles or more, and two begin in a cycle.
constexpr int kUnderWay = 8;

// Sums of kRows rows of inputs with kOutputs of the weight: of row r and output o they are the lanes of
// sums[r * kOutputs + o].
template <int kRows, int kOutputs, bool kShared, class Channels, class W>
inline void multiply(const typename Channels::Numbers* inputs, const W* const (&weights)[kOutputs], int64_t channels,
                     int64_t group, const SharedAhead& shared, Vec (&sums)[kRows * kOutputs]) {
  using Numbers = typename Channels::Numbers;
  constexpr int64_t kTogether = Channels::kTogether, kBytes = kTogether * static_cast<int64_t>(sizeof(W));
  // A line of the weight is several vectors of channels where their numbers are small, and several lines of a row may be
  // read at a time. They meet sums of their own where there are few, so that a product need not wait for the one before it.
  constexpr int kSums = kRows * kOutputs, kLines = kOutputs == 1 ? Channels::kLines : 1;
  constexpr int kVectors = kLines * (kBytes < kLine ? static_cast<int>(kLine / kBytes) : 1);
  constexpr int kParts = kSums < kUnderWay ? static_cast<int>(least(kVectors, kUnderWay / kSums)) : 1;
  Vec parts[kParts * kSums];
  unroll<kParts * kSums>([&](auto i) __attribute__((always_inline)) { parts[i] = broadcast(0.0f); });
  const auto add = [&](const Numbers(&numbers)[kOutputs], Vec* to) __attribute__((always_inline)) {
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      const Numbers input = inputs[r];
      unroll<kOutputs>([&](auto o) __attribute__((always_inline)) {
        to[r * kOutputs + o] = Channels::add(to[r * kOutputs + o], numbers[o], input);
      });
    });
    inputs += kRows;
  };
  constexpr auto kSize = static_cast<int64_t>(sizeof(W));
  const char* later = kShared ? reinterpret_cast<const char*>(weights[shared.output]) + shared.bytes : nullptr;
  int64_t d = 0;
  for (; d + kVectors * kTogether <= channels; d += kVectors * kTogether) {
    unroll<kOutputs>([&](auto o) __attribute__((always_inline)) {
      ask_ahead<kRows, kOutputs, kShared, kVectors * kBytes>(weights[o] + d, {(channels - d) * kSize, channels * kSize, group});
    });
    if (kShared) prefetch_for_later(later + d * kSize, kVectors * kBytes);
    unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
      Numbers numbers[kOutputs];
      unroll<kOutputs>([&](auto o) __attribute__((always_inline)) {
        numbers[o] = Channels::weight(weights[o] + d + v * kTogether);
      });
      add(numbers, parts + v % kParts * kSums);
    });
  }
  for (; d < channels; d += kTogether) {
    Numbers numbers[kOutputs];
    unroll<kOutputs>([&](auto o) __attribute__((always_inline)) {
      numbers[o] = Channels::weight_up_to(weights[o] + d, channels - d);
    });
    add(numbers, parts);
  }
  unroll<kSums>([&](auto i) __attribute__((always_inline)) {
    sums[i] = parts[i];
    unroll<kParts - 1>([&](auto p) __attribute__((always_inline)) { sums[i] = sums[i] + parts[(p + 1) * kSums + i]; });
  });
}

}  // namespace
}  // namespace winnow
