// Weighted sums of packed integers by integer products, see integer_dots.hpp.
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

// A block is read several times and should be in the first-level cache before the first: prefetching is as much farther
// ahead as it is longer than what is read of keys at once.
constexpr int64_t kBlockAhead = 4096;

// Registers hold the sums of so many vectors of numbers and queries at once.
constexpr int vectors_at_once(int queries, int fields) {
  const int most = 8 / (queries * fields);
  return most < 1 ? 1 : most < 4 ? most : 4;
}
constexpr int queries_at_once(int queries, int fields) { return queries * fields < 8 ? queries : 8 / fields; }

// Adds the products of the weights of kBlock queries, from `first` on, with kVectors vectors of bytes of the first
// tokens of a block; load_bytes(bytes, t) gives those of four. Always inlined into functions that are not: the caller's
// pointers would take the registers that the loop needs.
template <int kQueries, int kBlock, int kVectors, class Form, class Load>
__attribute__((always_inline)) inline void weigh_vectors(const WordWeights<kQueries>& all, int64_t block, int first,
                                                         int64_t tokens, const Load& load_bytes, float* acc,
                                                         int64_t acc_width) {
  constexpr int kStrips = kVectors * Form::kFields, kSums = kBlock * kStrips;
  __m512i high[kSums], low[kSums];
  unroll<kSums>([&](auto i) {
    high[i] = _mm512_setzero_si512();
    low[i] = _mm512_set1_epi32(all.offset[block][first + i / kStrips]);
  });
  const int8_t* weights = all.halves[block][first][0];
  for (int64_t t = 0; t < tokens; t += 4) {
    __m512i bytes[kVectors], values[kStrips];
    load_bytes(bytes, t);
    unroll<kStrips>([&](auto s) {
      values[s] = Form::template field<s % Form::kFields>(Form::lift(bytes[s / Form::kFields]));
    });
    unroll<kBlock>([&](auto q) {
      const __m512i weight_high = broadcast_four(weights + 2 * q * kWeightBlock);
      const __m512i weight_low = broadcast_four(weights + (2 * q + 1) * kWeightBlock);
      unroll<kStrips>([&](auto s) {
        constexpr int at = q * kStrips + s;
        high[at] = add_products(high[at], values[s], weight_high);
        low[at] = add_products(low[at], values[s], weight_low);
      });
    });
    weights += 4;
  }
  unroll<kBlock>([&](auto q) {
    const Vec step = broadcast(all.step[block][first + q]);
    unroll<kStrips>([&](auto s) {
      float* at = acc + (first + q) * acc_width + s * Vec::width;
      const Vec sum{_mm512_cvtepi32_ps(join(high[q * kStrips + s], low[q * kStrips + s]))};
      store(at, fma(step, sum, load(at)));
    });
  });
}

// Lane i: byte i of each of the four chunks.
inline __m512i interleave(__m512i chunks) {
  const __m512i lanes = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(lanes, chunks), bytes);
}

// The same for kVectors chunks of the rows of a block, a vector each.
template <int kQueries, int kBlock, int kVectors, class Form>
__attribute__((noinline)) void weigh_chunks(const WordWeights<kQueries>& all, int64_t block, int first,
                                            const uint8_t* rows, int64_t bytes, int64_t tokens, const char* ahead,
                                            float* acc, int64_t acc_width) {
  const auto load_bytes = [&](__m512i(&vectors)[kVectors], int64_t t) __attribute__((always_inline)) {
    unroll<kVectors>([&](auto v) {
      prefetch_numbers(ahead + kBlockAhead + (t / 4 * kVectors + v) * kLine);
      vectors[v] = interleave(load_chunks(rows + t * bytes + v * kBlockBytes, bytes));
    });
  };
  weigh_vectors<kQueries, kBlock, kVectors, Form>(all, block, first, tokens, load_bytes, acc, acc_width);
}

// The same for kVectors parts, from kPart on, of 64 bytes of the rows of a block. Part p of four rows has, in lane
// 4·c + i, byte 4·p + i of chunk c of every row: unpacking stays within chunks and takes no turns with the products.
template <int kQueries, int kBlock, int kVectors, int kPart, class Form>
__attribute__((noinline)) void weigh_parts(const WordWeights<kQueries>& all, int64_t block, int first,
                                           const uint8_t* rows, int64_t bytes, int64_t tokens, const char* ahead,
                                           float* acc, int64_t acc_width) {
  const auto load_bytes = [&](__m512i(&vectors)[kVectors], int64_t t) __attribute__((always_inline)) {
    __m512i row[4];
    unroll<4>([&](auto i) { row[i] = _mm512_loadu_si512(rows + (t + i) * bytes); });
    unroll<kVectors>([&](auto v) {
      constexpr int part = kPart + v;
      prefetch_numbers(ahead + kBlockAhead + (t + part) * kLine);
      constexpr bool kLow = part < 2;
      const __m512i a = kLow ? _mm512_unpacklo_epi8(row[0], row[1]) : _mm512_unpackhi_epi8(row[0], row[1]);
      const __m512i b = kLow ? _mm512_unpacklo_epi8(row[2], row[3]) : _mm512_unpackhi_epi8(row[2], row[3]);
      vectors[v] = part % 2 == 0 ? _mm512_unpacklo_epi16(a, b) : _mm512_unpackhi_epi16(a, b);
    });
  };
  weigh_vectors<kQueries, kBlock, kVectors, Form>(all, block, first, tokens, load_bytes, acc, acc_width);
}

// Whether rows are taken in parts of 64 bytes; else in chunks.
inline bool whole_lines(int64_t bytes) { return bytes % kLine == 0; }

// Sums of a row of `dim` channels in the order of parts -> in that of channels. `copy` is scratch.
template <class Form>
inline void order_parts(int64_t dim, float* acc, float* copy) {
  std::memcpy(copy, acc, static_cast<size_t>(dim) * sizeof(float));
  constexpr int kFields = Form::kFields;
  for (int64_t from = 0; from < dim; from += Vec::width) {
    const int64_t line = from / (64 * kFields), part = from / (16 * kFields) % 4, field = from / 16 % kFields;
    for (int64_t chunk = 0; chunk < 4; ++chunk) {
      float* to = acc + ((line * 4 + chunk) * kFields + field) * 16 + 4 * part;
      std::memcpy(to, copy + from + 4 * chunk, 4 * sizeof(float));
    }
  }
}

// The products of all queries and whole rows of a block; sums in the order of parts where there are whole lines.
template <int kQueries, class Form>
inline void weigh_words_block(const WordWeights<kQueries>& weights, int64_t block, const uint8_t* rows, int64_t bytes,
                              int64_t tokens, const char* ahead, float* acc, int64_t acc_width) {
  constexpr int kBlock = queries_at_once(kQueries, Form::kFields), kVectors = vectors_at_once(kBlock, Form::kFields);
  constexpr int kStrips = kVectors * Form::kFields;
  if (whole_lines(bytes)) {
    for (int64_t at = 0; at < bytes; at += kLine) {
      unroll<4 / kVectors>([&](auto p) {
        for (int first = 0; first < kQueries; first += kBlock) {
          weigh_parts<kQueries, kBlock, kVectors, p * kVectors, Form>(
              weights, block, first, rows + at, bytes, tokens, ahead + at * kWeightBlock,
              acc + at * Form::kFields + p * kStrips * Vec::width, acc_width);
        }
      });
    }
    return;
  }
  int64_t at = 0;
  const auto run = [&](auto vectors) {
    for (int first = 0; first < kQueries; first += kBlock) {
      weigh_chunks<kQueries, kBlock, decltype(vectors)::value, Form>(
          weights, block, first, rows + at, bytes, tokens, ahead + at * kWeightBlock, acc + at * Form::kFields,
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
// of a block.
template <int kQueries, class Form>
inline void weigh_words(const float* weights, const uint8_t* rows, int64_t dim, int64_t tokens, const char* last,
                        void* edge, float* acc, int64_t acc_width) {
  const int64_t bytes = dim / Form::kFields;
  WordWeights<kQueries> words;
  for (int64_t t = 0; t < tokens; t += kWeightBlock) {
    const int64_t block = t / kWeightBlock % words.kBlocks, rest = tokens - t;
    const int64_t count = rest < kWeightBlock ? rest : kWeightBlock;
    if (block == 0) quantise_weights<Form::kOffset>(weights + t, rest, words);
    const uint8_t* from = rows + t * bytes;
    const char* ahead = clamped_ahead_of(from, last);
    // Tokens go by fours, and nothing is read past the end: the rest is copied. Whatever lies behind has no weight.
    if (count % 4) from = static_cast<uint8_t*>(std::memcpy(edge, from, static_cast<size_t>(count * bytes)));
    weigh_words_block<kQueries, Form>(words, block, from, bytes, count, ahead, acc, acc_width);
  }
  if (!whole_lines(bytes)) return;
  for (int q = 0; q < kQueries; ++q) order_parts<Form>(dim, acc + q * acc_width, static_cast<float*>(edge));
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
      weigh_words<kQueries, Numbers<decltype(width)::value, true>>(weights, data, shape.value_dim, chunk.tokens, last,
                                                                   packed.tile, acc, shape.value_width);
    });
    return true;
  }
  return false;
}

}  // namespace
}  // namespace winnow
