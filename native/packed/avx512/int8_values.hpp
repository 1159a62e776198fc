// Weighted sums of packed integers by dot products in int8, see packed/dots.hpp.
#pragma once

#include <array>
#include <cstring>
#include <type_traits>

#include "attend/contract.hpp"
#include "attend/weights.hpp"
#include "packed/avx512/group_scales.hpp"
#include "packed/avx512/int8.hpp"
#include "packed/avx512/int8_weights.hpp"
#include "packed/format.hpp"
#include "packed/scratch.hpp"
#include "simd/avx512/sixteen_rows.hpp"
#include "simd/prefetch.hpp"
#include "simd/processor.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// A span of tokens is read several times and should be in the first-level cache before the first: prefetching is as much
// farther ahead as it is longer than what is read of keys at once.
constexpr int64_t kSpanAhead = 4096;

// Sets of the weights of a few queries, each in the order of Int16Weights.
template <int kSets, class Int16>
struct WeightSets {
  const int8_t* int16[kSets];
  const float* scale[kSets];
  const int32_t* offset[kSets];

  // The queries from `first` on.
  template <class Quantized>
  WeightSets(const Quantized& weights, const std::array<int64_t, kSets>& sets, int first) {
    for (int i = 0; i < kSets; ++i) {
      int16[i] = weights.int16[sets[i]][first];
      scale[i] = weights.scale[sets[i]] + first;
      offset[i] = weights.offset[sets[i]] + first;
    }
  }
};

// Registers hold the sums of so many queries and vectors of numbers at once.
template <class Int16>
constexpr int queries_at_once(int fields) {
  const int most = Int16::kSumsAtOnce / fields;
  return most < 8 ? most : 8;
}
template <class Int16>
constexpr int vectors_at_once(int queries, int fields) {
  const int most_queries = queries_at_once<Int16>(fields), together = queries < most_queries ? queries : most_queries;
  const int most = Int16::kSumsAtOnce / (together * fields);
  return most < 2 ? 1 : most < 4 ? 2 : 4;
}

// Adds the products of the weights of kBlock queries with kVectors blocks of the first tokens of a span;
// load_bytes(blocks, t) gives those of four. Neighboring channels, as many for each, meet kSets sets of weights. Always
// inlined into functions that are not: the caller's pointers would take the registers that the loop needs.
template <int kBlock, int kVectors, class Form, int kSets, class Int16, class Load>
__attribute__((always_inline)) inline void weigh_vectors(const WeightSets<kSets, Int16>& sets, int64_t tokens,
                                                         const Load& load_bytes, float* acc, int64_t acc_width) {
  constexpr int kStrips = kVectors * Form::kFields, kSums = kBlock * kStrips, kShared = kStrips / kSets;
  static_assert(kStrips % kSets == 0, "every set has as many strips");
  typename Int16::template Sums<kSums> sums;
  unroll<kSums>([&](auto i) { sums.start(i, _mm512_set1_epi32(sets.offset[i % kStrips / kShared][i / kStrips])); });
  const int8_t* weights[kSets];
  unroll<kSets>([&](auto set) { weights[set] = sets.int16[set]; });
  for (int64_t t = 0; t < tokens; t += 4) {
    __m512i blocks[kVectors][Form::kLoads];
    typename Int16::Bytes values[kStrips];
    load_bytes(blocks, t);
    unroll<kStrips>([&](auto s) {
      values[s] = typename Int16::Bytes(Form::template field<s % Form::kFields>(blocks[s / Form::kFields]));
    });
    Int16::template for_parts<kBlock>([&](auto q, auto part) __attribute__((always_inline)) {
      unroll<kSets>([&](auto set) __attribute__((always_inline)) {
        const int8_t* next = weights[set] + 2 * q * kWeightSpan;
        const __m512i weight = Int16::template load_part<decltype(part)::value, kWeightSpan>(next);
        unroll<kShared>([&](auto s) __attribute__((always_inline)) {
          constexpr int strip = set * kShared + s;
          sums.add(Count<q * kStrips + strip>{}, part, values[strip], weight);
        });
      });
    });
    unroll<kSets>([&](auto set) { weights[set] += Int16::kStep; });
  }
  unroll<kBlock>([&](auto q) {
    unroll<kStrips>([&](auto s) {
      const Vec scale = broadcast(sets.scale[s / kShared][q]);
      float* at = acc + q * acc_width + s * Vec::width;
      const Vec sum{_mm512_cvtepi32_ps(sums[Count<q * kStrips + s>{}])};
      store(at, fma(scale, sum, load(at)));
    });
  });
}

// Lane i: byte i of each of four blocks.
inline __m512i interleave(__m512i blocks) {
  const __m512i lanes = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(lanes, blocks), bytes);
}

// The same for kVectors blocks of the rows of a span, a vector each.
template <int kBlock, int kVectors, class Form, int kSets, class Int16>
__attribute__((noinline)) void weigh_blocks(const WeightSets<kSets, Int16>& sets, const Lift<Form>& lift,
                                            const uint8_t* rows, int64_t block, int64_t dim, int64_t bytes,
                                            int64_t tokens, const char* ahead, float* acc, int64_t acc_width) {
  constexpr int64_t kBytes = kVectors * Form::kBytes;
  const auto load_bytes = [&](__m512i(&blocks)[kVectors][Form::kLoads], int64_t t) __attribute__((always_inline)) {
    unroll<static_cast<int>(divide_up(4 * kBytes, kLine))>([&](auto line) {
      prefetch_busy(ahead + kSpanAhead + t * kBytes + line * kLine);
    });
    unroll<kVectors>([&](auto v) __attribute__((always_inline)) {
      unroll<Form::kLoads>([&](auto load) __attribute__((always_inline)) {
        const uint8_t* from = rows + t * bytes + Form::place(block + v, load, dim);
        const auto piece = [](const char* p) { return Form::template load<decltype(load)::value>(p); };
        blocks[v][load] = interleave(lift(join_rows(from, bytes, piece), load));
      });
    });
  };
  weigh_vectors<kBlock, kVectors, Form>(sets, tokens, load_bytes, acc, acc_width);
}

// The same for kVectors quarters, from kQuarter on, of lines of the rows of a span. Quarter k of four rows has, in lane
// 4·b + i, byte 4·k + i of block b of every row: unpacking stays within blocks and takes no turns with the products.
template <int kBlock, int kVectors, int kQuarter, class Form, class Int16>
__attribute__((noinline)) void weigh_quarters(const WeightSets<1, Int16>& span, const Lift<Form>& lift,
                                              const uint8_t* rows, int64_t bytes, int64_t tokens, const char* ahead,
                                              float* acc, int64_t acc_width) {
  const auto load_bytes = [&](__m512i(&blocks)[kVectors][1], int64_t t) __attribute__((always_inline)) {
    __m512i row[4];
    unroll<4>([&](auto i) { row[i] = _mm512_loadu_si512(rows + (t + i) * bytes); });
    unroll<kVectors>([&](auto v) {
      constexpr int quarter = kQuarter + v;
      prefetch_busy(ahead + kSpanAhead + (t + quarter) * kLine);
      constexpr bool kLow = quarter < 2;
      const __m512i a = kLow ? _mm512_unpacklo_epi8(row[0], row[1]) : _mm512_unpackhi_epi8(row[0], row[1]);
      const __m512i b = kLow ? _mm512_unpacklo_epi8(row[2], row[3]) : _mm512_unpackhi_epi8(row[2], row[3]);
      blocks[v][0] = lift(quarter % 2 == 0 ? _mm512_unpacklo_epi16(a, b) : _mm512_unpackhi_epi16(a, b), Count<0>{});
    });
  };
  weigh_vectors<kBlock, kVectors, Form>(span, tokens, load_bytes, acc, acc_width);
}

// Rows of whole lines are taken in quarters of these where numbers lie in one plane, others in blocks.
template <class Form>
inline bool whole_lines(int64_t bytes) {
  return Form::kLoads == 1 && bytes % kLine == 0;
}

// Sums of a row of `dim` channels in the order of quarters -> in that of channels.
template <class Form>
inline void order_quarters(int64_t dim, float* acc) {
  constexpr int kFields = Form::kFields;
  for (int64_t line = 0; line < dim; line += 4 * kFields * Vec::width, acc += 4 * kFields * Vec::width) {
    unroll<kFields>([&](auto field) {
      const auto at = [&](int place) { return acc + (place * kFields + field) * Vec::width; };
      __m512i vectors[4];
      unroll<4>([&](auto quarter) { vectors[quarter] = _mm512_loadu_si512(at(quarter)); });
      turn_quarters(vectors);
      unroll<4>([&](auto block) { _mm512_storeu_si512(at(block), vectors[block]); });
    });
  }
}

// The products of all queries and whole rows of a span, of whole lines; sums in the order of quarters.
template <int kQueries, class Form>
inline void weigh_span_lines(const Int16Weights<kQueries>& weights, int64_t span, const Lift<Form>& lift, const uint8_t* rows,
                             int64_t bytes, int64_t tokens, const char* ahead, float* acc, int64_t acc_width) {
  using Int16 = WeightInt16<kQueries>;
  constexpr int kMost = queries_at_once<Int16>(Form::kFields), kVectors = vectors_at_once<Int16>(kQueries, Form::kFields);
  constexpr int kStrips = kVectors * Form::kFields;
  for (int64_t at = 0; at < bytes; at += kLine) {
    unroll<4 / kVectors>([&](auto p) {
      for_even_parts<kQueries, kMost>([&](auto first, auto size) {
        weigh_quarters<size, kVectors, p * kVectors, Form>(
            WeightSets<1, Int16>(weights, {span}, first), lift, rows + at, bytes, tokens, ahead + at * kWeightSpan,
            acc + first * acc_width + at * Form::kFields + p * kStrips * Vec::width, acc_width);
      });
    });
  }
}

// The same of any rows, in the order of channels.
template <int kQueries, class Form>
inline void weigh_span_blocks(const Int16Weights<kQueries>& weights, int64_t span, const Lift<Form>& lift, const uint8_t* rows,
                              int64_t dim, int64_t bytes, int64_t tokens, const char* ahead, float* acc, int64_t acc_width) {
  using Int16 = WeightInt16<kQueries>;
  constexpr int kMost = queries_at_once<Int16>(Form::kFields), kVectors = vectors_at_once<Int16>(kQueries, Form::kFields);
  const int64_t blocks = dim / Form::kNumbers;
  int64_t block = 0;
  const auto run = [&](auto vectors) {
    for_even_parts<kQueries, kMost>([&](auto first, auto size) {
      weigh_blocks<size, decltype(vectors)::value, Form>(
          WeightSets<1, Int16>(weights, {span}, first), lift, rows, block, dim, bytes, tokens,
          ahead + block * Form::kBytes * kWeightSpan, acc + first * acc_width + block * Form::kNumbers, acc_width);
    });
    block += vectors;
  };
  while (block + kVectors <= blocks) run(Count<kVectors>{});
  if constexpr (kVectors > 1) {
    while (block < blocks) run(Count<1>{});
  }
}

// True where halves of numbers of two planes meet so many queries in no more passes: each takes less to unpack.
template <int kQueries, class Form>
constexpr bool in_halves() {
  if constexpr (Form::kLoads == 1) {
    return false;
  } else {
    using Int16 = WeightInt16<kQueries>;
    constexpr int64_t kPasses = divide_up(kQueries, queries_at_once<Int16>(Form::kFields));
    return 2 * divide_up(kQueries, queries_at_once<Int16>(Form::kFields / 2)) <= kPasses;
  }
}

// In the best way.
template <int kQueries, class Form>
inline void weigh_int8_span(const Int16Weights<kQueries>& weights, int64_t span, const Lift<Form>& lift,
                            const uint8_t* rows, int64_t dim, int64_t bytes, int64_t tokens, const char* ahead,
                            float* acc, int64_t acc_width) {
  if constexpr (Form::kLoads == 1) {
    if (whole_lines<Form>(bytes)) return weigh_span_lines(weights, span, lift, rows, bytes, tokens, ahead, acc, acc_width);
  }
  if constexpr (in_halves<kQueries, Form>()) {
    unroll<2>([&](auto half) {
      using Half = typename Form::template Half<2 * half>;
      const Lift<Half> lift_half(lift.offset != 0);
      weigh_span_blocks(weights, span, lift_half, rows, dim, bytes, tokens, ahead, acc + half * 2 * Vec::width, acc_width);
    });
  } else {
    weigh_span_blocks(weights, span, lift, rows, dim, bytes, tokens, ahead, acc, acc_width);
  }
}

// acc[q] = sum over tokens of weights[q]·numbers, in the order of channels; acc is zero before. `edge` is for the rows
// of a span.
template <int kQueries, class Form>
inline void weigh_int8_rows(const Lift<Form>& lift, Weights<kQueries>& weights, const uint8_t* rows, int64_t dim,
                            int64_t tokens, const char* last, void* edge, float* acc, int64_t acc_width) {
  const int64_t bytes = dim / (16 * Form::kFields) * Form::kBytes;
  Int16Weights<kQueries> quantized;
  for (int64_t t = 0; t < tokens; t += kWeightSpan) {
    const int64_t span = t / kWeightSpan % quantized.kSets, count = least(kWeightSpan, tokens - t);
    if (span == 0) quantize_weights(lift.offset, weights, t, tokens, quantized);
    const uint8_t* from = rows + t * bytes;
    const char* ahead = clamped_ahead_of(from, last);
    // Tokens go by fours, and nothing is read past the end: the rest is copied. Whatever lies behind has no weight.
    if (count % 4) from = static_cast<uint8_t*>(std::memcpy(edge, from, static_cast<size_t>(count * bytes)));
    weigh_int8_span<kQueries, Form>(quantized, span, lift, from, dim, bytes, count, ahead, acc, acc_width);
  }
  if (!whole_lines<Form>(bytes)) return;
  for (int q = 0; q < kQueries; ++q) order_quarters<Form>(dim, acc + q * acc_width);
}

// The same for numbers with scales of channel groups, added to acc; there are whole granules.
template <int kQueries, class Form, class T>
inline void weigh_int8_groups(const Groups<T>& groups, const Lift<Form>& lift, Weights<kQueries>& weights,
                              const uint8_t* rows, int64_t dim, int64_t tokens, const char* last, void* edge,
                              float* acc, int64_t acc_width) {
  using Int16 = WeightInt16<kQueries>;
  constexpr int kVectors = Form::kFields == 1 ? 2 : 1, kStrips = kVectors * Form::kFields;
  constexpr int kSets = kStrips / 2, kMost = queries_at_once<Int16>(kStrips);
  static_assert(kStrips * 16 == kSets * kGranule, "a set of weights for every granule");
  const int64_t bytes = dim / (16 * Form::kFields) * Form::kBytes;
  GroupWeights<kQueries> folded;
  for (int64_t t = 0; t < tokens; t += kWeightSpan) {
    const int64_t count = least(kWeightSpan, tokens - t);
    const uint8_t* from = rows + t * bytes;
    const char* ahead = clamped_ahead_of(from, last);
    if (count % 4) from = static_cast<uint8_t*>(std::memcpy(edge, from, static_cast<size_t>(count * bytes)));
    const Groups<T> here = later(groups, t);
    const float* taken = weights.take(t, count);
    for (int64_t first = 0; first < groups.count; first += folded.kSets) {
      const int64_t used = least(folded.kSets, groups.count - first), end = least((first + used) * groups.size, dim);
      fold_weights<kQueries>(here, lift.offset, first, used, taken, count, folded, acc, acc_width);
      for (int64_t d = first * groups.size; d < end; d += kStrips * 16) {
        std::array<int64_t, kSets> sets;
        unroll<kSets>([&](auto set) { sets[set] = (d + set * kGranule) / groups.size - first; });
        const int64_t block = d / (16 * Form::kFields);
        for_even_parts<kQueries, kMost>([&](auto query, auto size) {
          weigh_blocks<size, kVectors, Form>(WeightSets<kSets, Int16>(folded, sets, query), lift, from, block, dim, bytes,
                                             count, ahead + block * Form::kBytes * kWeightSpan,
                                             acc + query * acc_width + d, acc_width);
        });
      }
    }
  }
}

// True for values of `dim` channels that meet the weights of a model in T so.
template <class T>
inline bool weighs_int8(const winnow_rows& values, int64_t dim) {
  const bool whole_granules = values.scaling == WINNOW_PER_SLOT || dim % kGranule == 0;
  return !std::is_same_v<T, float> && whole_blocks(values, dim) && whole_granules;
}

// Adds the values of a chunk of integers under weights to acc, in the order of channels; false where the format is
// another, or the model's numbers are.
template <int kQueries, class T>
inline bool weigh_int8(const Shape& shape, const Chunk& chunk, Weights<kQueries>& weights, const PackedScratch& packed,
                       float* acc) {
  const winnow_rows& rows = chunk.part->values;
  if constexpr (!std::is_same_v<T, float>) {
    const int64_t dim = shape.value_dim;
    const bool per_slot = rows.scaling == WINNOW_PER_SLOT;
    if (!weighs_int8<T>(rows, dim)) return false;
    const uint8_t* data = bytes_at(rows.data) + chunk.slot * rows.row_bytes;
    const char* last = reinterpret_cast<const char*>(data) + chunk.tokens * rows.row_bytes - 1;
    const Groups<T> groups = per_slot ? Groups<T>{} : groups_of<T>(rows, chunk, dim);
    for_width(rows.bits, [&](auto width) {
      const Lift<Numbers<decltype(width)::value>> lift(rows.scaling != WINNOW_GROUPED);
      if (per_slot) {
        weigh_int8_rows<kQueries>(lift, weights, data, dim, chunk.tokens, last, packed.tile, acc, shape.value_width);
      } else {
        weigh_int8_groups<kQueries>(groups, lift, weights, data, dim, chunk.tokens, last, packed.tile, acc,
                                    shape.value_width);
      }
    });
    return true;
  }
  return false;
}

}  // namespace
}  // namespace winnow
