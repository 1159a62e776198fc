// Products of rows and panels in whole numbers, for AVX2, which multiplies twice as many of 16 bits at a time as of fp32.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "rounded/avx2/panel.hpp"
#include "rounded/sizes.hpp"
#include "simd/avx2.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Adds the products of pairs to a sum. In one piece: a compiler would begin all products before it adds the first, and spill.
inline void add_pairs(__m256i& sum, __m256i inputs, __m256i weights) {
  __m256i products;
  asm("vpmaddwd %[weights], %[inputs], %[products]\n\tvpaddd %[products], %[sum], %[sum]"
      : [sum] "+x"(sum), [products] "=&x"(products)
      : [inputs] "x"(inputs), [weights] "x"(weights));
}

// Adds the products of kTileInputs rows with blocks of a panel to sums [kTileInputs, kPanelOutputs], whose rows are `stride`
// apart. Sums of a block are whole numbers, which are scaled as fp32 numbers. numbers, scales: the panel's, as many blocks as
// are to be met. rows: these blocks of the first of the rows. Never inlined, where other numbers would crowd the registers.
[[maybe_unused, gnu::noinline]] void add_products(const RoundedRows& rows, int64_t blocks, const int16_t* numbers,
                                                  const float* scales, float* to, int64_t stride) {
  Vec sums[kTileInputs][kPanelVectors];
  unroll<kTileInputs>([&](auto r) __attribute__((always_inline)) {
    unroll<kPanelVectors>([&](auto v) __attribute__((always_inline)) {
      sums[r][v] = load(to + r * stride + v * Vec::width);
    });
  });
  const int64_t apart = rows.blocks * kRoundedTogether;
  for (int64_t block = 0; block < blocks; ++block, scales += kPanelOutputs) {
    const int16_t* inputs = rows.numbers + block * kRoundedTogether;
    __m256i found[kTileInputs][kPanelVectors];
    unroll<kTileInputs>([&](auto r) __attribute__((always_inline)) {
      unroll<kPanelVectors>([&](auto v) __attribute__((always_inline)) { found[r][v] = _mm256_setzero_si256(); });
    });
    for (int64_t i = 0; i < kRoundedTogether; i += 2, inputs += 2, numbers += 2 * kPanelOutputs) {
      __m256i weights[kPanelVectors];
      unroll<kPanelVectors>([&](auto v) __attribute__((always_inline)) {
        weights[v] = _mm256_load_si256(reinterpret_cast<const __m256i*>(numbers) + v);
      });
      unroll<kTileInputs>([&](auto r) __attribute__((always_inline)) {
        int32_t both;
        std::memcpy(&both, inputs + r * apart, sizeof both);
        const __m256i pair = _mm256_set1_epi32(both);
        unroll<kPanelVectors>([&](auto v) __attribute__((always_inline)) { add_pairs(found[r][v], pair, weights[v]); });
      });
    }
    unroll<kTileInputs>([&](auto r) __attribute__((always_inline)) {
      const Vec scale = broadcast(rows.scales[r * rows.blocks + block]);
      unroll<kPanelVectors>([&](auto v) __attribute__((always_inline)) {
        const Vec number = {_mm256_cvtepi32_ps(found[r][v])};
        sums[r][v] = fma(number, scale * load(scales + v * Vec::width), sums[r][v]);
      });
    });
  }
  unroll<kTileInputs>([&](auto r) __attribute__((always_inline)) {
    unroll<kPanelVectors>([&](auto v) __attribute__((always_inline)) {
      store(to + r * stride + v * Vec::width, sums[r][v]);
    });
  });
}

}  // namespace
}  // namespace winnow
