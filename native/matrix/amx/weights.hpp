// Products of a block of tokens with a panel of queries -> softmax numerators as tiles, beside those of the blocks before.
// Logits and their maxima are exponents of two until a chunk is done.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "attend/contract.hpp"
#include "matrix/amx/next_rows.hpp"
#include "matrix/amx/sizes.hpp"
#include "matrix/amx/split.hpp"
#include "simd/math.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

// Numerators are relative to the maximum of the blocks before as long as none is larger than two to this: most blocks then
// leave the sums before them as they are.
constexpr float kMostAbove = 11.0f;

// Maxima over tokens take several vectors: one would wait for itself.
constexpr int64_t kChains = 4;

// 2^x for x <= 127, to about 2e-7; anything below -92 gives 2^-92, as exp does.
inline Vec power_of_two(Vec x) {
  constexpr int kFloor = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  x = max(broadcast(-92.0f), x);  // NaN stays NaN
  const Vec rest = {_mm512_reduce_ps(x.v, kFloor)};
  Vec p = broadcast(1.87757669e-3f);
  p = fma(p, rest, broadcast(8.98934063e-3f));
  p = fma(p, rest, broadcast(5.58263175e-2f));
  p = fma(p, rest, broadcast(2.40153611e-1f));
  p = fma(p, rest, broadcast(6.93153083e-1f));
  p = fma(p, rest, broadcast(9.99999940e-1f));
  return {_mm512_scalef_ps(p.v, x.v)};  // which takes the floor of x
}

// What products of keys and weights of values are multiplied by: one for each token, or the same for all.
struct EachToken {
  const float *keys, *values;

  Vec of_keys(int64_t t) const { return broadcast(keys[t]); }
  Vec weigh(Vec weight, int64_t t) const { return weight * broadcast(values[t]); }
};
struct AllTokens {
  Vec factor;

  Vec of_keys(int64_t) const { return factor; }
  Vec weigh(Vec weight, int64_t) const { return weight; }
};

// The same once logits are capped, which have met those of keys.
template <class Scales>
struct Capped {
  const Scales& scales;

  Vec of_keys(int64_t) const { return broadcast(1.0f); }
  Vec weigh(Vec weight, int64_t t) const { return scales.weigh(weight, t); }
};

// The products of one vector of queries.
struct LogitColumn {
  float* at;
  int64_t lanes;  // from token to token
  int64_t tokens;
};

// Products -> capped logits, where they are.
template <class Scales>
inline void cap_logits(float softcap, const Scales& scales, Vec bias, const LogitColumn& column) {
  const Vec size = broadcast(kLog2E * softcap), inverse = broadcast(kLn2 / softcap);
  for (int64_t t = 0; t < column.tokens; ++t) {
    float* at = column.at + t * column.lanes;
    store(at, size * tanh(fma(load(at), scales.of_keys(t), bias) * inverse));
  }
}

template <class Scales>
inline Vec largest_logit(const Scales& scales, Vec bias, const LogitColumn& column) {
  Vec largest[kChains];
  for (Vec& chain : largest) chain = broadcast(kNoMax);
  const auto take = [&](int64_t t, Vec& chain) {
    chain = max(chain, fma(load(column.at + t * column.lanes), scales.of_keys(t), bias));
  };
  int64_t t = 0;
  for (; t + kChains <= column.tokens; t += kChains) unroll<kChains>([&](auto i) { take(t + i, largest[i]); });
  for (; t < column.tokens; ++t) take(t, largest[0]);
  return max(max(largest[0], largest[1]), max(largest[2], largest[3]));
}

// Numerators with the scales of values, in the place of products: in the row of the first of two tokens what bf16 holds of
// both, in pairs, and in that of the second the rest. Those behind the last token weigh nothing. Returns their sum without
// these scales.
template <class Scales>
inline Vec write_weights(const Scales& scales, Vec bias, LogitColumn column, NextRows& next) {
  Vec sums[2] = {broadcast(0.0f), broadcast(0.0f)};
  const auto weigh = [&](int64_t t, Vec& sum) {
    const Vec weight = power_of_two(fma(load(column.at + t * column.lanes), scales.of_keys(t), bias));
    sum = sum + weight;
    return split(scales.weigh(weight, t));
  };
  const auto put = [&](int64_t t, const Split& a, const Split& b) {
    float* row = column.at + t * column.lanes;
    _mm512_storeu_si512(row, pair(a.first, b.first));
    _mm512_storeu_si512(row + column.lanes, pair(a.rest, b.rest));
  };
  int64_t t = 0;
  for (; t + 2 <= column.tokens; t += 2) {
    next.ask();
    const Split a = weigh(t, sums[0]), b = weigh(t + 1, sums[1]);
    put(t, a, b);
  }
  const Split none = split(broadcast(0.0f));
  if (t < column.tokens) {
    put(t, weigh(t, sums[0]), none);
    t += 2;
  }
  for (; t < kTileTokens; t += 2) put(t, none, none);
  return sums[0] + sums[1];
}

// The maximum of a vector of queries after a block, and what sums relative to the one before are multiplied by.
struct Maximum {
  Vec max, factor;
  bool is_above;  // a factor is not one
};

inline Maximum raise(Vec before, Vec here) {
  if (!_mm512_cmp_ps_mask(here.v, (before + broadcast(kMostAbove)).v, _CMP_GT_OQ)) return {before, broadcast(1.0f), false};
  const Vec largest = max(before, here);
  return {largest, power_of_two(before - largest), true};
}

// What a vector of queries has of a panel's statistics.
struct LaneStatistics {
  float* max;
  float* sum;
  float* factor;  // of all sums before the block
};

// Takes a block in. Returns whether a factor is not one.
template <class Scales>
inline bool softmax(const Scales& scales, Vec bias, const LogitColumn& column, const LaneStatistics& lanes,
                    NextRows& next) {
  const Maximum raised = raise(load(lanes.max), largest_logit(scales, bias, column));
  const Vec sum = write_weights(scales, bias - raised.max, column, next);
  store(lanes.max, raised.max);
  store(lanes.sum, fma(raised.factor, load(lanes.sum), sum));
  store(lanes.factor, raised.factor);
  return raised.is_above;
}

template <class Scales>
inline bool softmax_column(float softcap, const Scales& scales, Vec bias, const LogitColumn& column,
                           const LaneStatistics& lanes, NextRows& next) {
  if (softcap == 0.0f) return softmax(scales, bias, column, lanes, next);
  cap_logits(softcap, scales, bias, column);
  return softmax(Capped<Scales>{scales}, broadcast(0.0f), column, lanes, next);
}

}  // namespace
}  // namespace winnow
