// Channels in bf16 that meet in pairs, for AVX-512 BF16. Numbers of 8 bits are whole numbers that bf16 holds as they are.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "simd/avx512/pairs.hpp"
#include "simd/element.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Weights of type W.
template <class W>
struct PairedChannels {
  static constexpr int64_t kTogether = 2 * Vec::width;
  static constexpr int kLines = 1;
  using Numbers = __m512i;

  static Numbers input(const Bf16* p) { return _mm512_loadu_si512(p); }
  static Numbers weight(const W* p) { return all(p); }
  static Numbers input_up_to(const Bf16* p, int64_t n) { return up_to(p, n); }
  static Numbers weight_up_to(const W* p, int64_t n) { return up_to(p, n); }

  static Vec add(Vec sum, Numbers weight, Numbers input) { return {Bf16Pairs::add(sum.v, weight, input)}; }

 private:
  static Numbers all(const Bf16* p) { return _mm512_loadu_si512(p); }
  static Numbers all(const Int8* p) { return round_lanes(load(p), load(p + Vec::width)); }

  static Numbers up_to(const Bf16* p, int64_t n) {
    return n < kTogether ? _mm512_maskz_loadu_epi16((__mmask32{1} << n) - 1, p) : all(p);
  }
  static Numbers up_to(const Int8* p, int64_t n) {
    const Vec rest = n > Vec::width ? load_up_to(p + Vec::width, n - Vec::width) : broadcast(0.0f);
    return round_lanes(load_up_to(p, n), rest);
  }
};

}  // namespace
}  // namespace winnow
