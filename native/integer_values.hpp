// Weighted sums of packed integers by integer products, see integer_dots.hpp.
#pragma once

#include <cstring>

#include "contract.hpp"
#include "integer_words.hpp"
#include "prefetch.hpp"

namespace winnow {
namespace {

// Tokens whose weights share a largest. Sums of their products fit into 32 bits: 32·255·kMostWord < 2^31. Those of
// their words are exact in fp32: 32·kMostWord < 2^24.
constexpr int64_t kWeightBlock = 32;

// Weights of a few blocks of tokens as words, as many as there are lanes for their largest. Those behind the last token
// are zero.
template <int kQueries>
struct WordWeights {
  static constexpr int kBlocks = Vec::width / kQueries;
  alignas(64) int8_t halves[kBlocks][kQueries][2][kWeightBlock];  // high and low
  alignas(64) float step[kBlocks][kQueries];
  alignas(64) int32_t offset[kBlocks][kQueries];  // for numbers that are larger by kOffset
};

// The halves of the words a and then b: 32 bytes of high ones, 32 bytes of low ones.
inline __m512i halves_of(__m512i a, __m512i b) {
  const __m512i words = _mm512_packs_epi32(a, b);  // four of a, four of b, ...
  const __m512i high = _mm512_srai_epi16(_mm512_add_epi16(words, _mm512_set1_epi16(128)), 8);
  const __m512i low = _mm512_srai_epi16(_mm512_slli_epi16(words, 8), 8);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(high, low));
}

template <int kOffset, int kQueries>
inline void quantise_weights(const float* weights, int64_t tokens, WordWeights<kQueries>& result) {
  constexpr int kRows = Vec::width;
  const auto at = [&](int64_t row, int64_t t) __attribute__((always_inline)) {
    t += row / kQueries * kWeightBlock;
    const int64_t rest = tokens - t < 0 ? 0 : tokens - t;
    return load_first(weights + row % kQueries * kLogitStride + t, rest < Vec::width ? rest : Vec::width);
  };
  Vec most[kRows];
  unroll<kRows>([&](auto row) { most[row] = larger_magnitude(at(row, 0), at(row, Vec::width)); });
  const Vec largest = row_maxima(most);
  alignas(64) float factors[kRows];
  store(factors, steps_of(largest));
  store(result.step[0], step_of(largest));
  Vec sums[kRows];
  unroll<kRows>([&](auto row) {
    const Vec factor = broadcast(factors[row]);
    const __m512i a = words_of(at(row, 0), factor), b = words_of(at(row, Vec::width), factor);
    _mm512_store_si512(result.halves[row / kQueries][row % kQueries], halves_of(a, b));
    sums[row] = {_mm512_cvtepi32_ps(_mm512_add_epi32(a, b))};
  });
  const __m512i offsets = _mm512_mullo_epi32(_mm512_cvtps_epi32(row_sums(sums).v), _mm512_set1_epi32(-kOffset));
  _mm512_store_si512(result.offset[0], offsets);
}

// Lane i: byte i of each of the four chunks.
inline __m512i interleave(__m512i chunks) {
  const __m512i lanes = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(lanes, chunks), bytes);
}

// Registers hold the sums of so many chunks and queries at once.
constexpr int chunks_at_once(int queries, int fields) {
  const int most = 8 / (queries * fields);
  return most < 1 ? 1 : most < 4 ? most : 4;
}
constexpr int queries_at_once(int queries, int fields) { return queries * fields < 8 ? queries : 8 / fields; }

// Adds the products of the weights of kBlock queries, from `first` on, with kChunks chunks of the rows of a block.
// Never inlined: the caller's pointers would take the registers that the loop needs.
template <int kQueries, int kBlock, int kChunks, class Form>
__attribute__((noinline)) void weigh_chunks(const WordWeights<kQueries>& all, int64_t block, int first,
                                            const uint8_t* rows, int64_t bytes, const char* ahead, float* acc,
                                            int64_t acc_width) {
  constexpr int kStrips = kChunks * Form::kFields, kSums = kBlock * kStrips;
  __m512i high[kSums], low[kSums];
  unroll<kSums>([&](auto i) {
    high[i] = _mm512_setzero_si512();
    low[i] = _mm512_set1_epi32(all.offset[block][first + i / kStrips]);
  });
  const int8_t* weights = all.halves[block][first][0];
  for (int64_t t = 0; t < kWeightBlock; t += 4) {
    __m512i values[kStrips];
    unroll<kChunks>([&](auto c) {
      prefetch_numbers<Form>(ahead + c * kLine);
      const __m512i chunks = Form::lift(interleave(load_chunks(rows + c * kChunkBytes, bytes)));
      unroll<Form::kFields>([&](auto f) {
        values[c * Form::kFields + f] = Form::template field<decltype(f)::value>(chunks);
      });
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
    rows += 4 * bytes;
    weights += 4;
    ahead += kChunks * kLine;
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

// The same for all queries and whole rows.
template <int kQueries, class Form>
inline void weigh_words_block(const WordWeights<kQueries>& weights, int64_t block, const uint8_t* rows,
                              int64_t bytes, const char* ahead, float* acc, int64_t acc_width) {
  constexpr int kBlock = queries_at_once(kQueries, Form::kFields), kChunks = chunks_at_once(kBlock, Form::kFields);
  int64_t at = 0;
  const auto run = [&](auto chunks) {
    for (int first = 0; first < kQueries; first += kBlock) {
      weigh_chunks<kQueries, kBlock, decltype(chunks)::value, Form>(
          weights, block, first, rows + at, bytes, ahead + at * kWeightBlock, acc + at * Form::kFields, acc_width);
    }
    at += chunks * kChunkBytes;
  };
  while (at + kChunks * kChunkBytes <= bytes) run(Count<kChunks>{});
  if constexpr (kChunks > 1) {
    while (at < bytes) run(Count<1>{});
  }
}

// acc[q] += sum over tokens of weights[q]·numbers, in the order of channels. `edge` is for the rows of a block.
template <int kQueries, class Form>
inline void weigh_words(const float* weights, const uint8_t* rows, int64_t dim, int64_t tokens, const char* last,
                        void* edge, float* acc, int64_t acc_width) {
  const int64_t bytes = dim / Form::kFields;
  WordWeights<kQueries> words;
  for (int64_t t = 0; t < tokens; t += kWeightBlock) {
    const int64_t block = t / kWeightBlock % words.kBlocks, rest = tokens - t;
    if (block == 0) quantise_weights<Form::kOffset>(weights + t, rest, words);
    const uint8_t* from = rows + t * bytes;
    const char* ahead = clamped_ahead_of(from, last);
    // The rest is copied, since a block must not read past the end. Whatever lies behind has no weight.
    if (rest < kWeightBlock) from = static_cast<uint8_t*>(std::memcpy(edge, from, static_cast<size_t>(rest * bytes)));
    weigh_words_block<kQueries, Form>(words, block, from, bytes, ahead, acc, acc_width);
  }
}

// The same for any width of signed integers.
template <int kQueries>
inline void weigh_words(int32_t bits, const float* weights, const uint8_t* rows, int64_t dim, int64_t tokens,
                        const char* last, void* edge, float* acc, int64_t acc_width) {
  const auto run = [&](auto form) {
    weigh_words<kQueries, decltype(form)>(weights, rows, dim, tokens, last, edge, acc, acc_width);
  };
  switch (bits) {
    case 8: return run(Numbers<8, true>{});
    case 4: return run(Numbers<4, true>{});
    default: return run(Numbers<2, true>{});
  }
}

}  // namespace
}  // namespace winnow
