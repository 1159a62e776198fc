// Numbers of a prompt in bf16 that meet in pairs, for AVX-512 BF16: two channels of keys and queries, two tokens of values
// and weights. Weights are rounded to bf16 as well, and summed up as they were rounded.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "prefill/lanes.hpp"
#include "prefill/singles.hpp"
#include "simd/avx512/pairs.hpp"
#include "simd/avx512/powers.hpp"
#include "simd/element.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// a is a number ? b : NaN
inline Vec if_number(Vec a, Vec b) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), b.v, a.v)};
}

// A float is a pair here.
struct PairedNumbers {
  static constexpr int64_t kTogether = 2;
  static constexpr float kUnit = 1.44269504f;  // Logits are exponents of two.

  static Vec add(Vec sum, Vec pair, Vec lanes) {
    return {Bf16Pairs::add(sum.v, _mm512_castps_si512(pair.v), _mm512_castps_si512(lanes.v))};
  }

  // A query down its lane, without the scaling: that is left to logits.
  static void gather(const Bf16* from, int64_t dim, float, float* lane) {
    for (int64_t d = 0; d < dim; d += 2, lane += kLanes) {
      *lane = 0.0f;
      std::memcpy(lane, from + d, static_cast<size_t>(least(2, dim - d)) * sizeof(Bf16));
    }
  }

  static Vec logits(Vec products, float scaling) { return products * broadcast(scaling * kUnit); }

  // Keys of `count` tokens: where they lie if they are whole pairs and fill whole tiles, else copied, with zeros for what
  // is not there.
  static FloatRows keys(const Bf16* from, int64_t stride, int64_t dim, int64_t count, float* copies) {
    const bool aligned = reinterpret_cast<uintptr_t>(from) % sizeof(float) == 0 && stride % 2 == 0;
    if (aligned && count % kTileRows == 0 && dim % 2 == 0) return {reinterpret_cast<const float*>(from), stride / 2};
    const int64_t width = divide_up(dim, 2);
    std::memset(copies, 0, static_cast<size_t>(round_up(count, kTileRows) * width) * sizeof(float));
    for (int64_t t = 0; t < count; ++t) {
      std::memcpy(copies + t * width, from + t * stride, static_cast<size_t>(dim) * sizeof(Bf16));
    }
    return {copies, width};
  }

  // Values of `count` tokens, two to a row, channel by channel; a token that is not there is zero.
  static FloatRows values(const Bf16* from, int64_t stride, int64_t dim, int64_t count, float* copies) {
    const int64_t width = round_up(dim, 2 * Vec::width);
    for (int64_t t = 0; t < count; t += 2) {
      pair_rows(from + t * stride, t + 1 < count ? from + (t + 1) * stride : nullptr, dim, copies + t / 2 * width);
    }
    return {copies, width};
  }

  static Lanes weigh(const float* logits, int64_t tokens, const Lanes& shift, float* weights, Lanes sum) {
    const Vec ones = {_mm512_castsi512_ps(_mm512_set1_epi16(kOneInBf16))}, units = broadcast(kOneUnits);
    const Lanes less = combine(shift, shift, [&](Vec a, Vec) { return (broadcast(-1.0f) - a) * units; });
    Lanes all = all_lanes(0.0f);  // A power knows no NaN, a sum of exponents does.
    for (int64_t t = 0; t < tokens; t += 2) {
      Lanes both;
      unroll<kBlockVectors>([&](auto v) {
        const float* at = logits + t * kLanes + v * Vec::width;
        const Vec first = fma(load(at), units, less.v[v]), second = fma(load(at + kLanes), units, less.v[v]);
        all.v[v] = all.v[v] + (first + second);
        both.v[v] = {_mm512_castsi512_ps(pair_powers(bf16_power(first), bf16_power(second)))};
        sum.v[v] = add(sum.v[v], both.v[v], ones);
      });
      store_lanes(weights + t / 2 * kLanes, both);
    }
    return combine(sum, all, [](Vec a, Vec b) { return if_number(b, a); });
  }

  static Lanes weight(const float* weights, int64_t token) {
    Lanes lanes = load_lanes(weights + token / 2 * kLanes);
    for (Vec& vector : lanes.v) {
      const __m512i both = _mm512_castps_si512(vector.v);
      vector = token % 2 ? upper(Bf16{}, both) : lower(Bf16{}, both);
    }
    return lanes;
  }
};

}  // namespace
}  // namespace winnow
