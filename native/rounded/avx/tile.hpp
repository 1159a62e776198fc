// Products of rows and panels in fp32, for AVX2 and AVX-512.
#pragma once

#include <cstdint>

#include "rounded/avx/panel.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Adds the products of `count` numbers of kTileInputs rows, which are `apart`, with a panel [count, kPanelOutputs] to sums
// [kTileInputs, kPanelOutputs], whose rows are `stride` apart. Never inlined, where other numbers would crowd the registers.
[[maybe_unused, gnu::noinline]] void add_products(const float* rows, int64_t apart, int64_t count, const float* panel,
                                                  float* to, int64_t stride) {
  Vec sums[kTileInputs][kPanelVectors];
  unroll<kTileInputs>([&](auto r) __attribute__((always_inline)) {
    unroll<kPanelVectors>([&](auto v) __attribute__((always_inline)) {
      sums[r][v] = load(to + r * stride + v * Vec::width);
    });
  });
  for (int64_t i = 0; i < count; ++i, ++rows, panel += kPanelOutputs) {
    Vec numbers[kPanelVectors];
    unroll<kPanelVectors>([&](auto v) __attribute__((always_inline)) {
      numbers[v] = load(panel + v * Vec::width);
      load_once(numbers[v]);
    });
    unroll<kTileInputs>([&](auto r) __attribute__((always_inline)) {
      const Vec input = broadcast(rows[r * apart]);
      unroll<kPanelVectors>([&](auto v) __attribute__((always_inline)) { sums[r][v] = fma(input, numbers[v], sums[r][v]); });
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
