// Products of a panel of queries with a block of tokens -> softmax numerators in bf16, in pairs of tokens as tiles read
// them.
#pragma once

#include <immintrin.h>

#include <cstdint>

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

constexpr float kOneUnits = 8388608.0f;  // 2^23, the bits of a mantissa
constexpr int kAndOr = 0xea;             // (a & b) | c

// 2^(x + 1) as a float whose upper half is it in bf16, rounded, of x in units of 2^-23 (no less than 2^-126), to 2^-9.
//
// The bits of a float, as an integer, count evenly between powers of two: those of 2^x are x, but for what its mantissa
// 1 + f is off 2^f. The polynomial 2^f - f + 1 has the bits of that, and one half of bf16's last bit beside.
inline __m512i bf16_power(Vec x) {
  const __m512i bits = _mm512_cvtps_epi32(max(x, broadcast(-127.0f * kOneUnits)).v);
  const Vec mantissa = {_mm512_castsi512_ps(
      _mm512_ternarylogic_epi32(bits, _mm512_set1_epi32(0x7fffff), _mm512_set1_epi32(0x3f800000), kAndOr))};
  Vec p = broadcast(7.80245235e-2f);
  p = fma(p, mantissa, broadcast(-8.00640988e-3f));
  p = fma(p, mantissa, broadcast(-5.22227216e-1f));
  p = fma(p, mantissa, broadcast(2.45213432f + 0x1p-8f));
  return _mm512_add_epi32(_mm512_castps_si512(p.v), bits);
}

// Numerators 2^(logit - shift) of a vector of queries; returns their sum.
inline Vec write_numerators(const Products& products, Vec shift, uint32_t* pairs) {
  const Vec scale = broadcast(kOneUnits * products.factor);
  const Vec bias = (broadcast(-1.0f) - shift) * broadcast(kOneUnits);
  const auto ones = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f803f80));
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const auto at = [&](int64_t t) { return bf16_power(fma(load(products.at + t * kPanelLanes), scale, bias)); };
  __m512 sums[kTokensAtOnce / 2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int64_t t = 0; t < products.tokens; t += kTokensAtOnce) {
    unroll<kTokensAtOnce / 2>([&](auto i) {
      const __m512i a = at(t + 2 * i), b = at(t + 2 * i + 1);
      const __m512i pair = _mm512_ternarylogic_epi32(b, upper, _mm512_srli_epi32(a, 16), kAndOr);
      _mm512_storeu_si512(pairs + (t / 2 + i) * kPanelLanes, pair);
      sums[i] = _mm512_dpbf16_ps(sums[i], reinterpret_cast<__m512bh>(pair), ones);
    });
  }
  return {_mm512_add_ps(sums[0], sums[1])};
}

}  // namespace
}  // namespace winnow
