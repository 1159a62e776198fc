// Weighted sums of packed integers by dot products in int8, see packed/dots.hpp.
#pragma once

#include <cstring>
#include <type_traits>

#include "attend/contract.hpp"
#include "packed/avx512/int8.hpp"
#include "packed/avx512/int8_weights.hpp"
#include "packed/format.hpp"
#include "packed/scratch.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// A span of tokens is read several times and should be in the first-level cache before the first: prefetching is as much
// farther ahead as it is longer than what is read of keys at once.
constexpr int64_t kSpanAhead = 4096;

// Registers hold the sums of so many vectors of numbers and queries at once.
constexpr int vectors_at_once(int queries, int fields) {
  const int most = 8 / (queries * fields);
  return most < 1 ? 1 : most < 4 ? most : 4;
}
constexpr int queries_at_once(int queries, int fields) { return queries * fields < 8 ? queries : 8 / fields; }

// Adds the products of the weights of kBlock queries, from `first` on, with kVectors vectors of bytes of the first
// tokens of a span; load_bytes(bytes, t) gives those of four. Always inlined into functions that are not: the caller's
// pointers would take the registers that the loop needs.
template <int kQueries, int kBlock, int kVectors, class Form, class Load>
__attribute__((always_inline)) inline void weigh_vectors(const Int16Weights<kQueries>& all, int64_t span, int first,
                                                         int64_t tokens, const Load& load_bytes, float* acc,
                                                         int64_t acc_width) {
  constexpr int kStrips = kVectors * Form::kFields, kSums = kBlock * kStrips;
  __m512i high[kSums], low[kSums];
  unroll<kSums>([&](auto i) {
    high[i] = _mm512_setzero_si512();
    low[i] = _mm512_set1_epi32(all.offset[span][first + i / kStrips]);
  });
  const int8_t* weights = all.halves[span][first][0];
  for (int64_t t = 0; t < tokens; t += 4) {
    __m512i bytes[kVectors], values[kStrips];
    load_bytes(bytes, t);
    unroll<kStrips>([&](auto s) {
      values[s] = Form::template field<s % Form::kFields>(Form::lift(bytes[s / Form::kFields]));
    });
    unroll<kBlock>([&](auto q) {
      const __m512i weight_high = broadcast_four(weights + 2 * q * kWeightSpan);
      const __m512i weight_low = broadcast_four(weights + (2 * q + 1) * kWeightSpan);
      unroll<kStrips>([&](auto s) {
        constexpr int at = q * kStrips + s;
        high[at] = add_products(high[at], values[s], weight_high);
        low[at] = add_products(low[at], values[s], weight_low);
      });
    });
    weights += 4;
  }
  unroll<kBlock>([&](auto q) {
    const Vec scale = broadcast(all.scale[span][first + q]);
    unroll<kStrips>([&](auto s) {
      float* at = acc + (first + q) * acc_width + s * Vec::width;
      const Vec sum{_mm512_cvtepi32_ps(join(high[q * kStrips + s], low[q * kStrips + s]))};
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
template <int kQueries, int kBlock, int kVectors, class Form>
__attribute__((noinline)) void weigh_blocks(const Int16Weights<kQueries>& all, int64_t span, int first,
                                            const uint8_t* rows, int64_t bytes, int64_t tokens, const char* ahead,
                                            float* acc, int64_t acc_width) {
  const auto load_bytes = [&](__m512i(&vectors)[kVectors], int64_t t) __attribute__((always_inline)) {
    unroll<kVectors>([&](auto v) {
      prefetch_numbers(ahead + kSpanAhead + (t / 4 * kVectors + v) * kLine);
      vectors[v] = interleave(load_blocks(rows + t * bytes + v * kBlockBytes, bytes));
    });
  };
  weigh_vectors<kQueries, kBlock, kVectors, Form>(all, span, first, tokens, load_bytes, acc, acc_width);
}

// The same for kVectors quarters, from kQuarter on, of lines of the rows of a span. Quarter k of four rows has, in lane
// 4·b + i, byte 4·k + i of block b of every row: unpacking stays within blocks and takes no turns with the products.
template <int kQueries, int kBlock, int kVectors, int kQuarter, class Form>
__attribute__((noinline)) void weigh_quarters(const Int16Weights<kQueries>& all, int64_t span, int first,
                                              const uint8_t* rows, int64_t bytes, int64_t tokens, const char* ahead,
                                              float* acc, int64_t acc_width) {
  const auto load_bytes = [&](__m512i(&vectors)[kVectors], int64_t t) __attribute__((always_inline)) {
    __m512i row[4];
    unroll<4>([&](auto i) { row[i] = _mm512_loadu_si512(rows + (t + i) * bytes); });
    unroll<kVectors>([&](auto v) {
      constexpr int quarter = kQuarter + v;
      prefetch_numbers(ahead + kSpanAhead + (t + quarter) * kLine);
      constexpr bool kLow = quarter < 2;
      const __m512i a = kLow ? _mm512_unpacklo_epi8(row[0], row[1]) : _mm512_unpackhi_epi8(row[0], row[1]);
      const __m512i b = kLow ? _mm512_unpacklo_epi8(row[2], row[3]) : _mm512_unpackhi_epi8(row[2], row[3]);
      vectors[v] = quarter % 2 == 0 ? _mm512_unpacklo_epi16(a, b) : _mm512_unpackhi_epi16(a, b);
    });
  };
  weigh_vectors<kQueries, kBlock, kVectors, Form>(all, span, first, tokens, load_bytes, acc, acc_width);
}

// Rows of whole lines are taken in quarters of these, others in blocks.
inline bool whole_lines(int64_t bytes) { return bytes % kLine == 0; }

// Sums of a row of `dim` channels in the order of quarters -> in that of channels. `copy` is scratch.
template <class Form>
inline void order_quarters(int64_t dim, float* acc, float* copy) {
  std::memcpy(copy, acc, static_cast<size_t>(dim) * sizeof(float));
  constexpr int kFields = Form::kFields;
  for (int64_t from = 0; from < dim; from += Vec::width) {
    const int64_t line = from / (64 * kFields), quarter = from / (16 * kFields) % 4, field = from / 16 % kFields;
    for (int64_t block = 0; block < 4; ++block) {
      float* to = acc + ((line * 4 + block) * kFields + field) * 16 + 4 * quarter;
      std::memcpy(to, copy + from + 4 * block, 4 * sizeof(float));
    }
  }
}

// The products of all queries and whole rows of a span; sums in the order of quarters where there are whole lines.
template <int kQueries, class Form>
inline void weigh_int8_span(const Int16Weights<kQueries>& weights, int64_t span, const uint8_t* rows, int64_t bytes,
                            int64_t tokens, const char* ahead, float* acc, int64_t acc_width) {
  constexpr int kBlock = queries_at_once(kQueries, Form::kFields), kVectors = vectors_at_once(kBlock, Form::kFields);
  constexpr int kStrips = kVectors * Form::kFields;
  if (whole_lines(bytes)) {
    for (int64_t at = 0; at < bytes; at += kLine) {
      unroll<4 / kVectors>([&](auto p) {
        for (int first = 0; first < kQueries; first += kBlock) {
          weigh_quarters<kQueries, kBlock, kVectors, p * kVectors, Form>(
              weights, span, first, rows + at, bytes, tokens, ahead + at * kWeightSpan,
              acc + at * Form::kFields + p * kStrips * Vec::width, acc_width);
        }
      });
    }
    return;
  }
  int64_t at = 0;
  const auto run = [&](auto vectors) {
    for (int first = 0; first < kQueries; first += kBlock) {
      weigh_blocks<kQueries, kBlock, decltype(vectors)::value, Form>(
          weights, span, first, rows + at, bytes, tokens, ahead + at * kWeightSpan, acc + at * Form::kFields,
          acc_width);
    }
    at += vectors * kBlockBytes;
  };
  while (at + kVectors * kBlockBytes <= bytes) run(Count<kVectors>{});
  if constexpr (kVectors > 1) {
    while (at < bytes) run(Count<1>{});
  }
}

// acc[q] = sum over tokens of weights[q]·numbers, in the order of channels; acc is zero before. `edge` is for the rows
// of a span.
template <int kQueries, class Form>
inline void weigh_int8_rows(const float* weights, const uint8_t* rows, int64_t dim, int64_t tokens, const char* last,
                            void* edge, float* acc, int64_t acc_width) {
  const int64_t bytes = dim / Form::kFields;
  Int16Weights<kQueries> quantized;
  for (int64_t t = 0; t < tokens; t += kWeightSpan) {
    const int64_t span = t / kWeightSpan % quantized.kSpans, rest = tokens - t;
    const int64_t count = rest < kWeightSpan ? rest : kWeightSpan;
    if (span == 0) quantize_weights<Form::kOffset>(weights + t, rest, quantized);
    const uint8_t* from = rows + t * bytes;
    const char* ahead = clamped_ahead_of(from, last);
    // Tokens go by fours, and nothing is read past the end: the rest is copied. Whatever lies behind has no weight.
    if (count % 4) from = static_cast<uint8_t*>(std::memcpy(edge, from, static_cast<size_t>(count * bytes)));
    weigh_int8_span<kQueries, Form>(quantized, span, from, bytes, count, ahead, acc, acc_width);
  }
  if (!whole_lines(bytes)) return;
  for (int q = 0; q < kQueries; ++q) order_quarters<Form>(dim, acc + q * acc_width, static_cast<float*>(edge));
}

// Adds the values of a chunk of integers under weights to acc, in the order of channels; false where the format is
// another, or the model's numbers are.
template <int kQueries, class T>
inline bool weigh_int8(const Shape& shape, const Chunk& chunk, const float* weights, const PackedScratch& packed,
                       float* acc) {
  const winnow_rows& rows = chunk.part->values;
  if constexpr (!std::is_same_v<T, float>) {
    if (!whole_blocks(rows, shape.value_dim) || rows.scaling != WINNOW_PER_SLOT) return false;
    const uint8_t* data = bytes_at(rows.data) + chunk.slot * rows.row_bytes;
    const char* last = reinterpret_cast<const char*>(data) + chunk.tokens * rows.row_bytes - 1;
    for_width(rows.bits, [&](auto width) {
      weigh_int8_rows<kQueries, Numbers<decltype(width)::value, true>>(weights, data, shape.value_dim, chunk.tokens,
                                                                       last, packed.tile, acc, shape.value_width);
    });
    return true;
  }
  return false;
}

}  // namespace
}  // namespace winnow
