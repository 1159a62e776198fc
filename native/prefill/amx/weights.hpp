// Products of a panel of queries with a block of tokens -> softmax numerators in bf16, in pairs of tokens as tiles read
// them.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "simd/avx512/powers.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

constexpr int64_t kPanelLanes = 32;

// Tokens at a time: one chain of maxima or sums would wait for itself.
constexpr int64_t kTokensAtOnce = 4;

// Products [tokens, kPanelLanes] of one vector of queries, which times the factor are logits, exponents of two.
struct Products {
  const float* at;
  int64_t tokens;  // a multiple of kTokensAtOnce
  float factor;
};

inline Vec largest_logit(const Products& products) {
  Vec largest[kTokensAtOnce];
  unroll<kTokensAtOnce>([&](auto i) { largest[i] = load(products.at + i * kPanelLanes); });
  for (int64_t t = kTokensAtOnce; t < products.tokens; t += kTokensAtOnce) {
    unroll<kTokensAtOnce>([&](auto i) { largest[i] = max(largest[i], load(products.at + (t + i) * kPanelLanes)); });
  }
  return max(max(largest[0], largest[1]), max(largest[2], largest[3])) * broadcast(products.factor);
}

// Numerators 2^(logit - shift) of a vector of queries; returns their sum.
inline Vec write_numerators(const Products& products, Vec shift, uint32_t* pairs) {
  const Vec scale = broadcast(kOneUnits * products.factor);
  const Vec bias = (broadcast(-1.0f) - shift) * broadcast(kOneUnits);
  const auto ones = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f803f80));
  const auto at = [&](int64_t t) { return bf16_power(fma(load(products.at + t * kPanelLanes), scale, bias)); };
  __m512 sums[kTokensAtOnce / 2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int64_t t = 0; t < products.tokens; t += kTokensAtOnce) {
    unroll<kTokensAtOnce / 2>([&](auto i) {
      const __m512i pair = pair_powers(at(t + 2 * i), at(t + 2 * i + 1));
      _mm512_storeu_si512(pairs + (t / 2 + i) * kPanelLanes, pair);
      sums[i] = _mm512_dpbf16_ps(sums[i], reinterpret_cast<__m512bh>(pair), ones);
    });
  }
  return {_mm512_add_ps(sums[0], sums[1])};
}

}  // namespace
}  // namespace winnow
