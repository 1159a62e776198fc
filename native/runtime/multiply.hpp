// Products in registers, and nothing else: with the read (read_sum.hpp) the speed of light for the kernels.
#pragma once

#include <cstdint>

#include "dense/pairs.hpp"
#include "simd/element.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"
#include "winnow_native.h"
#if defined(__AVX512VNNI__)
#include "simd/avx512/pairs.hpp"
#include "simd/avx512/quads.hpp"
#include "simd/processor.hpp"
#endif

namespace winnow {
namespace {

// Numbers of fp32.
struct Fp32Products {
  using Sum = Vec;
  static constexpr int kNumbers = Vec::width;  // that an instruction multiplies

  static Sum start(const float* seed) { return load(seed); }
  static void add(Sum& sum, Sum with) { sum = fma(with, with, sum); }
  static void keep(float* to, Sum sum) { store(to, sum); }
};

#if defined(WINNOW_ZEN)
// Pairs of bf16.
struct Bf16Products {
  using Sum = __m512;
  static constexpr int kNumbers = 32;

  static Sum start(const float* seed) { return _mm512_loadu_ps(seed); }
  static void add(Sum& sum, Sum with) { sum = Bf16Pairs::add(sum, _mm512_castps_si512(with), _mm512_castps_si512(with)); }
  static void keep(float* to, Sum sum) { _mm512_storeu_ps(to, sum); }
};
#endif

#if defined(__AVX512VNNI__)
// Integers with int16: as bytes with either half of four, or two to a lane.
struct IntegerProducts {
  using Sum = __m512i;
  static constexpr int kNumbers = 32;

  static Sum start(const float* seed) { return _mm512_loadu_si512(seed); }
  static void add(Sum& sum, Sum with) { sum = kZen ? Int16Pairs::add(sum, with, with) : add_quads(sum, with, with); }
  static void keep(float* to, Sum sum) { _mm512_storeu_si512(to, sum); }
};
#endif

// Sums of products: more than wait for each other, and with their factor no more than registers hold.
#if defined(__AVX512F__) && !defined(WINNOW_PORTABLE)
constexpr int kProductSums = 16;
#elif defined(__AVX2__) && !defined(WINNOW_PORTABLE)
constexpr int kProductSums = 12;
#else
constexpr int kProductSums = 6;
#endif

// As many products as are asked for, or a few more. Returns how many.
template <class Products>
inline int64_t multiply_with(int64_t products) {
  alignas(64) float seeds[kProductSums + 1][16];
  for (int i = 0; i <= kProductSums; ++i) {
    for (float& lane : seeds[i]) lane = 1.0f / static_cast<float>(i + 1);
  }
  float* hidden = seeds[0];
  asm volatile("" : "+r"(hidden) : : "memory");  // or sums would be known, and most of them left out
  typename Products::Sum sums[kProductSums];
  const typename Products::Sum with = Products::start(hidden + 16 * kProductSums);
  unroll<kProductSums>([&](auto i) { sums[i] = Products::start(hidden + 16 * i); });
  const int64_t steps = divide_up(products, kProductSums * Products::kNumbers);
  for (int64_t step = 0; step < steps; ++step) {
    unroll<kProductSums>([&](auto i) { Products::add(sums[i], with); });
  }
  unroll<kProductSums>([&](auto i) { Products::keep(hidden + 16 * i, sums[i]); });
  asm volatile("" : : "r"(hidden) : "memory");
  return steps * kProductSums * Products::kNumbers;
}

// The products of attention to numbers of `bits` bits in a model of a dtype.
inline int64_t multiply(int64_t products, [[maybe_unused]] int32_t bits, [[maybe_unused]] int32_t dtype) {
#if defined(__AVX512VNNI__)
  if (bits < 16 && dtype != WINNOW_F32) return multiply_with<IntegerProducts>(products);
#endif
#if defined(WINNOW_ZEN)
  if (bits == 16 && dtype == WINNOW_BF16) return multiply_with<Bf16Products>(products);
#endif
  return multiply_with<Fp32Products>(products);
}

}  // namespace
}  // namespace winnow
