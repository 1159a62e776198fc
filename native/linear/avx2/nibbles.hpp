// A weight of 4 bits with inputs in fp32, for AVX2: numbers from 0 to 15, the middle of which is 8.
//
// The order is that in which torch packs such weights for processors with AVX2: of 32 outputs, input after input, 16 bytes, the
// lower halves of which are the first 16 outputs.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "linear/contract.hpp"
#include "linear/finish.hpp"
#include "linear/rows.hpp"
#include "simd/avx2.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Outputs that lie beside each other, vectors of them, and bytes of a group of inputs.
constexpr int kNibbleOutputs = 32, kNibbleVectors = kNibbleOutputs / Vec::width, kHalfVectors = kNibbleVectors / 2;
constexpr int64_t kNibbleBytes = WINNOW_SCALE_GROUP * kNibbleOutputs / 2;

// Groups from one to that whose scales are asked for with it.
constexpr int64_t kGroupsAhead = 4;

// Rows that meet numbers while these are unpacked. More meet them written out, a block of rows at a time.
constexpr int64_t kUnpackingRows = 2, kWrittenRows = 32;

// Scales and middles of a group of inputs, for all outputs.
struct NibbleScales {
  Vec scales[kNibbleVectors], middles[kNibbleVectors];

  template <class T>
  explicit NibbleScales(const T* pairs) {
    unroll<kNibbleVectors>([&](auto v) __attribute__((always_inline)) {
      Vec even = load(pairs + 2 * v * Vec::width), odd = load(pairs + (2 * v + 1) * Vec::width);
      deal_lanes(even, odd);
      scales[v] = even;
      middles[v] = odd;
    });
  }
};

// Where the groups of a block of outputs lie, one after another.
template <class T>
struct NibbleGroups {
  const uint8_t* numbers;
  const T* scales;
  int64_t apart;  // Scales and middles of a group.

  NibbleGroups(const winnow_linear_layer& layer, int64_t output)
      : numbers(static_cast<const uint8_t*>(layer.weight) + output * layer.inputs / 2),
        scales(static_cast<const T*>(layer.scales) + 2 * output),
        apart(2 * layer.outputs) {}

  NibbleScales ask_ahead() const {
    prefetch_span<2 * kNibbleOutputs * sizeof(T), false>(reinterpret_cast<const char*>(scales + kGroupsAhead * apart));
    return NibbleScales(scales);
  }

  void operator++() {
    numbers += kNibbleBytes;
    scales += apart;
  }
};

// The numbers of an input: of the first outputs, and of those as high halves together with sixteen of the others.
struct Nibbles {
  Vec low[kHalfVectors], both[kHalfVectors];

  explicit Nibbles(const uint8_t* p) {
    unroll<kHalfVectors>([&](auto v) __attribute__((always_inline)) {
      const __m256i bytes = _mm256_cvtepu8_epi32(eight_bytes(p + v * Vec::width));
      low[v] = {_mm256_cvtepi32_ps(_mm256_and_si256(bytes, _mm256_set1_epi32(15)))};
      both[v] = {_mm256_cvtepi32_ps(bytes)};
    });
  }
};

// Asks for what comes, with the first input of a line.
inline void ask_ahead(const uint8_t* numbers, int64_t input) {
  if (input % (2 * kLine / kNibbleOutputs) == 0) {
    prefetch_span<kLine, false>(reinterpret_cast<const char*>(numbers) + kPrefetchBytes);
  }
}

// The inputs of a group of a row in fp32, and their sum.
struct GroupInputs {
  alignas(32) float numbers[WINNOW_SCALE_GROUP];
  float sum;

  template <class T>
  void copy(const T* from) {
    Vec all = broadcast(0.0f);
    unroll<WINNOW_SCALE_GROUP / Vec::width>([&](auto v) __attribute__((always_inline)) {
      const Vec some = load(from + v * Vec::width);
      store(numbers + v * Vec::width, some);
      all = all + some;
    });
    sum = lane_sum(all);
  }
};

// Products of kRows rows with a block of outputs.
template <int kRows>
struct NibbleTotals {
  // Sums that a product need not wait for, where there is but one row: of even inputs and of odd ones.
  static constexpr int kParts = kRows == 1 ? 2 : 1, kSums = kRows * kNibbleVectors;
  Vec totals[kSums];

  NibbleTotals() {
    for (Vec& total : totals) total = broadcast(0.0f);
  }

  // Adds those of a group of inputs: of the numbers times their scale, and of the middle times the inputs' sum.
  void add(const uint8_t* numbers, const NibbleScales& of, const GroupInputs (&inputs)[kRows]) {
    Vec sums[kParts * kSums];
    unroll<kParts * kSums>([&](auto i) __attribute__((always_inline)) { sums[i] = broadcast(0.0f); });
    for (int64_t i = 0; i < WINNOW_SCALE_GROUP; i += 4) {
      ask_ahead(numbers, i);
      unroll<4>([&](auto j) __attribute__((always_inline)) {
        const Nibbles nibbles(numbers);
        numbers += kNibbleOutputs / 2;
        unroll<kRows>([&](auto r) __attribute__((always_inline)) {
          const Vec input = broadcast(inputs[r].numbers[i + j]);
          Vec* to = sums + j % kParts * kSums + r * kNibbleVectors;
          unroll<kHalfVectors>([&](auto v) __attribute__((always_inline)) {
            to[v] = fma(nibbles.low[v], input, to[v]);
            to[v + kHalfVectors] = fma(nibbles.both[v], input, to[v + kHalfVectors]);
          });
        });
      });
    }
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      const Vec all = broadcast(inputs[r].sum), less = broadcast(-8.0f * inputs[r].sum);
      unroll<kHalfVectors>([&](auto v) __attribute__((always_inline)) {
        constexpr int kFirst = r * kNibbleVectors;
        Vec low = sums[kFirst + v], both = sums[kFirst + v + kHalfVectors];
        if constexpr (kParts == 2) {
          low = low + sums[kSums + v];
          both = both + sums[kSums + v + kHalfVectors];
        }
        const Vec high = (both - low) * broadcast(1.0f / 16);
        add_scaled(totals[kFirst + v], low + less, of, v, all);
        add_scaled(totals[kFirst + v + kHalfVectors], high + less, of, v + kHalfVectors, all);
      });
    });
  }

  void copy_row(int64_t row, float* to) const {
    for (int v = 0; v < kNibbleVectors; ++v) store(to + v * Vec::width, totals[row * kNibbleVectors + v]);
  }

 private:
  static void add_scaled(Vec& total, Vec sum, const NibbleScales& of, int v, Vec all) {
    total = fma(sum, of.scales[v], fma(all, of.middles[v], total));
  }
};

// The outputs of a block for kRows rows.
template <class T, int kRows>
inline void nibbles_of_few(const winnow_linear_layer& layer, const LinearRows& all, int64_t row, int64_t output) {
  const T* rows[kRows];
  point_at_rows(static_cast<const T*>(all.inputs), all.count, layer.inputs, row, rows);
  NibbleTotals<kRows> totals;
  NibbleGroups<T> groups(layer, output);
  for (int64_t first = 0; first < layer.inputs; first += WINNOW_SCALE_GROUP, ++groups) {
    GroupInputs inputs[kRows];
    unroll<kRows>([&](auto r) __attribute__((always_inline)) { inputs[r].copy(rows[r] + first); });
    totals.add(groups.numbers, groups.ask_ahead(), inputs);
  }
  for (int64_t r = 0; r < kRows; ++r) {
    float found[kNibbleOutputs];
    totals.copy_row(r, found);
    finish<T>(layer, found, nullptr, all, row + r, output, output + kNibbleOutputs);
  }
}

// The numbers of a group in fp32, scaled: of an input, those of all outputs beside each other.
struct WrittenGroup {
  alignas(32) float numbers[WINNOW_SCALE_GROUP][kNibbleOutputs];

  void write(const uint8_t* from, const NibbleScales& of) {
    for (int64_t i = 0; i < WINNOW_SCALE_GROUP; ++i, from += kNibbleOutputs / 2) {
      ask_ahead(from, i);
      const Nibbles nibbles(from);
      unroll<kHalfVectors>([&](auto v) __attribute__((always_inline)) {
        const Vec high = (nibbles.both[v] - nibbles.low[v]) * broadcast(1.0f / 16), middle = broadcast(8.0f);
        store(numbers[i] + v * Vec::width, fma(nibbles.low[v] - middle, of.scales[v], of.middles[v]));
        constexpr int kOther = v + kHalfVectors;
        store(numbers[i] + kOther * Vec::width, fma(high - middle, of.scales[kOther], of.middles[kOther]));
      });
    }
  }

  // Adds the products with the inputs of kRows rows to their sums.
  template <int kRows>
  void add(const GroupInputs* inputs, float (*to)[kNibbleOutputs]) const {
    Vec sums[kRows * kNibbleVectors];
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      unroll<kNibbleVectors>([&](auto v) __attribute__((always_inline)) {
        sums[r * kNibbleVectors + v] = load(to[r] + v * Vec::width);
      });
    });
    for (int64_t i = 0; i < WINNOW_SCALE_GROUP; ++i) {
      unroll<kNibbleVectors>([&](auto v) __attribute__((always_inline)) {
        const Vec number = load(numbers[i] + v * Vec::width);
        unroll<kRows>([&](auto r) __attribute__((always_inline)) {
          Vec& sum = sums[r * kNibbleVectors + v];
          sum = fma(number, broadcast(inputs[r].numbers[i]), sum);
        });
      });
    }
    unroll<kRows>([&](auto r) __attribute__((always_inline)) {
      unroll<kNibbleVectors>([&](auto v) __attribute__((always_inline)) {
        store(to[r] + v * Vec::width, sums[r * kNibbleVectors + v]);
      });
    });
  }
};

// The outputs of a block for up to kWrittenRows rows.
template <class T>
inline void nibbles_of_many(const winnow_linear_layer& layer, const LinearRows& all, int64_t row, int64_t output) {
  const int64_t rows = least(kWrittenRows, all.count - row);
  const T* at = static_cast<const T*>(all.inputs) + row * layer.inputs;
  float sums[kWrittenRows][kNibbleOutputs] = {};
  GroupInputs inputs[kWrittenRows];
  WrittenGroup written;
  NibbleGroups<T> groups(layer, output);
  for (int64_t first = 0; first < layer.inputs; first += WINNOW_SCALE_GROUP, ++groups) {
    for (int64_t r = 0; r < rows; ++r) inputs[r].copy(at + r * layer.inputs + first);
    written.write(groups.numbers, groups.ask_ahead());
    int64_t r = 0;
    for (; r + 2 <= rows; r += 2) written.add<2>(inputs + r, sums + r);
    if (r < rows) written.add<1>(inputs + r, sums + r);
  }
  for (int64_t r = 0; r < rows; ++r) finish<T>(layer, sums[r], nullptr, all, row + r, output, output + kNibbleOutputs);
}

template <class T>
inline void linear_nibbles(const winnow_linear_layer& layer, const LinearRows& all, int64_t first, int64_t last) {
  for (int64_t output = first; output < last; output += kNibbleOutputs) {
    for (int64_t row = 0; row < all.count; row += kWrittenRows) {
      const int64_t rows = all.count - row;
      rows > kUnpackingRows ? nibbles_of_many<T>(layer, all, row, output)
      : rows == 2           ? nibbles_of_few<T, 2>(layer, all, row, output)
                            : nibbles_of_few<T, 1>(layer, all, row, output);
    }
  }
}

}  // namespace
}  // namespace winnow
