// A weight of 4 bits with inputs in bf16, for AVX-512 BF16: numbers from 0 to 15 less 8, which bf16 holds as they are.
//
// The order is that in which torch packs such weights for processors with AVX-512: of 64 outputs, input after input, 32
// bytes, the lower halves of which are the first 32 outputs. A lane of a product is two inputs of an output.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "linear/contract.hpp"
#include "linear/finish.hpp"
#include "linear/rows.hpp"
#include "simd/avx512.hpp"
#include "simd/avx512/pairs.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Rows for which the numbers of a pair of inputs are unpacked once, and vectors of sums for the outputs of each: even ones
// of the first half, of the second, then odd ones.
constexpr int kNibbleRows = 4, kNibbleSums = 4;

// Groups from one to that whose scales are asked for with it.
constexpr int64_t kGroupsAhead = 4;

// Two inputs of a word beside each other, of all outputs.
struct Nibbles {
  __m512i words;

  explicit Nibbles(const uint8_t* p) : words(pair_halves(_mm512_loadu_si512(p))) {}

  // Those of a vector of sums as bf16. The table repeats: of a word five bits are looked at.
  template <int kSum>
  __m512i numbers() const {
    const __m256i table = _mm256_setr_epi16(-0x3f00, -0x3f20, -0x3f40, -0x3f60, -0x3f80, -0x3fc0, -0x4000, -0x4080, 0,
                                            0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0);
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4 * kSum), _mm512_broadcast_i64x4(table));
  }
};

// Scales and middles of a group of inputs, for all outputs, in the order of sums.
struct NibbleScales {
  Vec scales[kNibbleSums], middles[kNibbleSums];

  explicit NibbleScales(const Bf16* pairs) {
    unroll<kNibbleSums / 2>([&](auto half) {
      Vec even = {_mm512_loadu_ps(pairs + 64 * half)}, odd = {_mm512_loadu_ps(pairs + 64 * half + 32)};
      deal_lanes(even, odd);
      set<half>(even);
      set<half + 2>(odd);
    });
  }

 private:
  template <int kSum>
  void set(Vec pairs) {
    const __m512i bits = _mm512_castps_si512(pairs.v);
    scales[kSum] = lower(Bf16{}, bits);
    middles[kSum] = upper(Bf16{}, bits);
  }
};

// Products of kRows rows with kOutputsAtOnce outputs.
template <int kRows>
struct NibbleTotals {
  Vec totals[kRows][kNibbleSums];

  NibbleTotals() {
    for (auto& row : totals) {
      for (Vec& total : row) total = broadcast(0.0f);
    }
  }

  // Adds those of a group of inputs: of the numbers times their scale, and of the middle times the inputs' sum.
  void add(const uint8_t* numbers, const NibbleScales& of, const Bf16* const (&inputs)[kRows], int64_t first) {
    const __m512i ones = _mm512_set1_epi16(kOneInBf16);
    __m512 sums[kRows * kNibbleSums];
    unroll<kRows * kNibbleSums>([&](auto i) __attribute__((always_inline)) { sums[i] = Bf16Pairs::zero(); });
    for (int64_t i = 0; i < WINNOW_SCALE_GROUP; i += 2, numbers += kLine) {
      prefetch_span<kLine, false>(reinterpret_cast<const char*>(numbers) + kPrefetchBytes);
      const Nibbles nibbles(numbers);
      __m512i input[kRows];
      unroll<kRows>([&](auto r) __attribute__((always_inline)) {
        input[r] = broadcast_four(inputs[r] + first + i);
      });
      unroll<kNibbleSums>([&](auto k) __attribute__((always_inline)) {
        const __m512i each = nibbles.numbers<k>();
        unroll<kRows>([&](auto r) __attribute__((always_inline)) {
          sums[r * kNibbleSums + k] = Bf16Pairs::add(sums[r * kNibbleSums + k], each, input[r]);
        });
      });
    }
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      static_assert(WINNOW_SCALE_GROUP * sizeof(Bf16) == sizeof(__m512i));
      const __m512i group = _mm512_loadu_si512(inputs[r] + first);
      const Vec all = broadcast(lane_sum(Vec{Bf16Pairs::add(Bf16Pairs::zero(), group, ones)}));
      unroll<kNibbleSums>([&](auto k) __attribute__((always_inline)) {
        const Vec scaled = fma(Vec{sums[r * kNibbleSums + k]}, of.scales[k], totals[r][k]);
        totals[r][k] = fma(all, of.middles[k], scaled);
      });
    });
  }

  // Those of a row in the order of outputs.
  void copy_row(int64_t row, float* to) const {
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int half = 0; half < 2; ++half, to += 2 * Vec::width) {
      const __m512 even = totals[row][half].v, odd = totals[row][half + 2].v;
      store(to, {_mm512_permutex2var_ps(even, first, odd)});
      store(to + Vec::width, {_mm512_permutex2var_ps(even, second, odd)});
    }
  }
};

// Adds up all groups of inputs.
template <int kRows>
inline void add_groups(const winnow_linear_layer& layer, const Bf16* const (&inputs)[kRows], int64_t output,
                       NibbleTotals<kRows>& totals) {
  const uint8_t* numbers = static_cast<const uint8_t*>(layer.weight) + output * layer.inputs / 2;
  const Bf16* scales = static_cast<const Bf16*>(layer.scales) + 2 * output;
  for (int64_t first = 0; first < layer.inputs; first += WINNOW_SCALE_GROUP) {
    const Bf16* ahead = scales + kGroupsAhead * 2 * layer.outputs;
    prefetch_span<2 * kOutputsAtOnce * sizeof(Bf16), false>(reinterpret_cast<const char*>(ahead));
    totals.add(numbers, NibbleScales(scales), inputs, first);
    numbers += WINNOW_SCALE_GROUP * kOutputsAtOnce / 2;
    scales += 2 * layer.outputs;
  }
}

inline void linear_nibbles(const winnow_linear_layer& layer, const LinearRows& all, int64_t first, int64_t last) {
  for_row_blocks<kNibbleRows>(all.count, [&](int64_t row, auto size) {
    const Bf16* inputs[size];
    point_at_rows(static_cast<const Bf16*>(all.inputs), all.count, layer.inputs, row, inputs);
    NibbleTotals<size> totals;
    add_groups(layer, inputs, first, totals);
    for (int64_t r = 0; r < least(size, all.count - row); ++r) {
      float found[kOutputsAtOnce];
      totals.copy_row(r, found);
      finish<Bf16>(layer, found, nullptr, all, row + r, first, last);
    }
  });
}

}  // namespace
}  // namespace winnow
