// A linear layer of many rows and a weight of few bits in bytes, for AVX-512 VNNI and VBMI: four of them are multiplied to a
// lane, twice as many as pairs of bf16. Sums of inputs that share a scale are whole numbers, which are scaled as fp32 numbers.
//
// A panel of the weight meets a few rows at a time, in registers, as in pairs of bf16 (paired_rows.hpp).
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "linear/avx512/ahead.hpp"
#include "linear/avx512/byte_inputs.hpp"
#include "linear/avx512/byte_panel.hpp"
#include "linear/contract.hpp"
#include "linear/finish.hpp"
#include "linear/avx512/levels.hpp"
#include "simd/avx512.hpp"
#include "simd/avx512/quads.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Rows whose sums are in registers: of inputs that share a scale, and of those before them.
constexpr int kByteTile = 3;

// A vector that stays in a register: GCC would read it again for every row.
inline __m512i read_once(__m512i a) {
  asm("" : "+v"(a));
  return a;
}

// Sums of whole numbers, as fp32, of kRows rows and a part of a block of inputs.
template <int kBits, int kRows>
__attribute__((always_inline)) inline void sum_group(const ByteBlock<kBits>* rows, int group,
                                                     const __m512i (*numbers)[kByteVectors], Vec (&to)[kRows][kByteVectors]) {
  __m512i sums[kRows][kByteVectors];
  unroll<kRows>([&](auto r) __attribute__((always_inline)) {
    unroll<kByteVectors>([&](auto v) __attribute__((always_inline)) { sums[r][v] = _mm512_set1_epi32(rows[r].starts[group]); });
  });
  for (int64_t i = group * kGroupInputs<kBits>; i < (group + 1) * kGroupInputs<kBits>; i += kQuad, ++numbers) {
    __m512i weights[kByteVectors];
    unroll<kByteVectors>([&](auto v) __attribute__((always_inline)) { weights[v] = read_once((*numbers)[v]); });
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      const __m512i input = broadcast_four(rows[r].numbers + i);
      unroll<kByteVectors>([&](auto v) __attribute__((always_inline)) {
        sums[r][v] = add_quads(sums[r][v], weights[v], input);
      });
    });
  }
  unroll<kRows>([&](auto r) __attribute__((always_inline)) {
    unroll<kByteVectors>([&](auto v) __attribute__((always_inline)) { to[r][v] = {_mm512_cvtepi32_ps(sums[r][v])}; });
  });
}

// Adds sums of inputs that share a scale, times that, and of their middle if they have one.
template <int kBits, int kRows>
__attribute__((always_inline)) inline void add_scaled(const ByteBlock<kBits>* rows, const BytePanel& panel, int64_t group,
                                                      int of_block, const Vec (&sums)[kRows][kByteVectors],
                                                      Vec (&to)[kRows][kByteVectors]) {
  unroll<kRows>([&](auto r) __attribute__((always_inline)) {
    unroll<kByteVectors>([&](auto v) __attribute__((always_inline)) {
      to[r][v] = fma(sums[r][v], panel.scales[group][v], to[r][v]);
    });
    if constexpr (kHasMiddles<kBits>) {
      const Vec inputs = broadcast(rows[r].sums[of_block]);
      unroll<kByteVectors>([&](auto v) __attribute__((always_inline)) {
        to[r][v] = fma(inputs, panel.middles(group)[v], to[r][v]);
      });
    }
  });
}

// Sums of kRows rows and a block of a panel, but for the scale of the rows' blocks.
template <int kBits, int kRows>
__attribute__((always_inline)) inline void sum_block(const ByteBlock<kBits>* rows, const BytePanel& panel, int64_t block,
                                                     Vec (&found)[kRows][kByteVectors]) {
  const auto* numbers = panel.numbers + block * (kRoundedTogether / kQuad);
  if constexpr (kBits == 8) {
    sum_group(rows, 0, numbers, found);
  } else {
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      unroll<kByteVectors>([&](auto v) __attribute__((always_inline)) { found[r][v] = broadcast(0.0f); });
    });
    constexpr int kGroups = ByteBlock<kBits>::kGroups;
    unroll<kGroups>([&](auto group) __attribute__((always_inline)) {
      Vec sums[kRows][kByteVectors];
      sum_group(rows, group, numbers + group * (kGroupInputs<kBits> / kQuad), sums);
      add_scaled(rows, panel, block * kGroups + group, group, sums, found);
    });
  }
}

// Adds the products of kRows rows with a block of a panel to sums [kRows, kOutputsAtOnce]. Never inlined, where other numbers
// would crowd the registers.
template <int kBits, int kRows>
[[gnu::noinline]] void add_block(const ByteBlock<kBits>* rows, const BytePanel& panel, int64_t block, float* to) {
  Vec found[kRows][kByteVectors];
  sum_block(rows, panel, block, found);
  unroll<kRows>([&](auto r) __attribute__((always_inline)) {
    const Vec scale = broadcast(rows[r].scale);
    unroll<kByteVectors>([&](auto v) __attribute__((always_inline)) {
      float* sum = to + r * kOutputsAtOnce + v * Vec::width;
      store(sum, fma(found[r][v], scale, load(sum)));
    });
  });
}

// Memory of a thread: a panel, and sums of rows.
struct ByteScratch {
  alignas(kLine) BytePanel panel;
  float sums[1][kOutputsAtOnce];  // as many as there are rows
};

inline int64_t byte_scratch_bytes(const winnow_linear_layer&, int64_t rows, int64_t) {
  return static_cast<int64_t>(sizeof(BytePanel)) + rows * kOutputsAtOnce * static_cast<int64_t>(sizeof(float));
}

// Outputs from `first` to `last` of some rows.
template <int kBits>
class RowsInBytes {
 public:
  RowsInBytes(const winnow_linear_layer& layer, const LinearRows& all, const ByteRows<kBits>& rows, char* scratch)
      : layer_(layer), all_(all), rows_(rows), scratch_(*reinterpret_cast<ByteScratch*>(scratch)) {}

  void run(int64_t first, int64_t last) {
    std::memset(scratch_.sums, 0, static_cast<size_t>(all_.count) * sizeof scratch_.sums[0]);
    for (int64_t input = 0; input < layer_.inputs; input += kByteInputs) {
      const int64_t end = least(input + kByteInputs, layer_.inputs);
      lay<kBits>(layer_, input, end, first, scratch_.panel);
      multiply(input, end, end < layer_.inputs ? weight_at(first, end) : weight_at(last, 0));
    }
    const void* scales = kBits == 8 ? layer_.scales : nullptr;
    finish_rows<Bf16>(layer_, scratch_.sums, scales, all_, first, last);
  }

 private:
  // Where the weight is read next, as rows of as many bytes as a panel has inputs.
  RowsAhead weight_at(int64_t output, int64_t input) const {
    if (output >= layer_.outputs) return {nullptr, 0, 0};
    const auto* weight = static_cast<const char*>(layer_.weight);
    if (kBits < 8) {
      return {weight + (output * layer_.inputs + input * kOutputsAtOnce) * kBits / 8, kByteInputs, kOutputsAtOnce * kBits / 8};
    }
    return {weight + output * layer_.inputs + input, layer_.inputs, least(kOutputsAtOnce, layer_.outputs - output)};
  }

  // Products of all rows with the panel, in tiles that are as even as they can be.
  void multiply(int64_t input, int64_t end, const RowsAhead& weight) {
    const int64_t tiles = divide_up(all_.count, kByteTile), share = divide_up(weight.count, tiles);
    const int64_t begin = input / kRoundedTogether, blocks = divide_up(end - input, kRoundedTogether);
    for (int64_t tile = 0, first = 0; tile < tiles; ++tile) {
      const int64_t last = (tile + 1) * all_.count / tiles, asked = least(tile * share, weight.count);
      const RowsAhead ahead = {weight.first + asked * weight.stride, weight.stride, least(share, weight.count - asked)};
      for (int64_t block = 0; block < blocks; ++block) {
        ahead.ask<2>(block * kRoundedTogether);
        add(last - first, rows_.at(first, begin + block), block, scratch_.sums[first]);
      }
      first = last;
    }
  }

  void add(int64_t rows, const ByteBlock<kBits>* inputs, int64_t block, float* to) {
    static_assert(kByteTile == 3);
    switch (rows) {
      case 3: return add_block<kBits, 3>(inputs, scratch_.panel, block, to);
      case 2: return add_block<kBits, 2>(inputs, scratch_.panel, block, to);
      default: return add_block<kBits, 1>(inputs, scratch_.panel, block, to);
    }
  }

  const winnow_linear_layer& layer_;
  const LinearRows& all_;
  const ByteRows<kBits> rows_;
  ByteScratch& scratch_;
};

inline void rows_in_bytes(const winnow_linear_layer& layer, const LinearRows& all, const LaidInputs& rounded, int64_t first,
                          int64_t last, char* scratch) {
  with_bits(layer, [&](auto bits) { RowsInBytes<bits>(layer, all, ByteRows<bits>(rounded), scratch).run(first, last); });
}

}  // namespace
}  // namespace winnow
