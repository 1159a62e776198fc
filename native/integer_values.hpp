// Weighted sums of packed integers by integer products, see integer_dots.hpp.
#pragma once

#include <cstring>

#include "contract.hpp"
#include "integer_words.hpp"
#include "prefetch.hpp"

namespace winnow {
namespace {

// Tokens whose weights share a largest: so many that sums of their products fit into 32 bits.
constexpr int64_t kWeightBlock = 32;

// Weights of a block of tokens as words.
template <int kQueries>
struct WordWeights {
  alignas(64) int16_t words[kQueries][kWeightBlock];
  float step[kQueries];
  float sum[kQueries];  // of the words
};

template <int kQueries>
inline void quantise_weights(const float* weights, int64_t tokens, WordWeights<kQueries>& result) {
  unroll<kQueries>([&](auto q) {
    const float* row = weights + q * kLogitStride;
    const auto at = [&](int64_t t) {
      return tokens - t >= Vec::width ? load(row + t) : tokens > t ? load_first(row + t, tokens - t) : broadcast(0.0f);
    };
    const Vec first = at(0), second = at(Vec::width);
    const float most = lane_max(max(magnitude(first), magnitude(second)));
    const Vec factor = broadcast(steps_of(most));
    store_words(result.words[q], first, factor);
    store_words(result.words[q] + Vec::width, second, factor);
    result.step[q] = step_of(most);
    result.sum[q] = lane_sum(round_nearest(first * factor) + round_nearest(second * factor));
  });
}

// Registers hold the sums of so many queries at once.
template <int kQueries, int kLoads, class Form>
constexpr int word_queries() {
  constexpr int kMost = 16 / (2 * kLoads * Form::kFields);
  return kQueries < kMost ? kQueries : kMost;
}

// Adds the products of the weights of some queries, from `first` on, with kLoads loads of every row. Two tokens meet
// in a lane: the words of both are interleaved, low halves and high halves of every four lanes apart, and the sums
// stay in that order.
template <int kQueries, int kLoads, class Form>
inline void weigh_words_block(const WordWeights<kQueries>& all, int first, const uint8_t* rows, int64_t bytes,
                              int64_t tokens, const char* ahead, float* acc, int64_t acc_width) {
  constexpr int kFields = Form::kFields, kSums = 2 * kLoads * kFields;
  constexpr int kBlock = word_queries<kQueries, kLoads, Form>();
  __m512i sums[kBlock * kSums];
  unroll<kBlock * kSums>([&](auto i) { sums[i] = _mm512_setzero_si512(); });
  for (int64_t t = 0; t < tokens; t += 2) {
    const uint8_t* even = rows + t * bytes;
    const uint8_t* odd = t + 1 < tokens ? even + bytes : even;
    prefetch(ahead + t * bytes);
    prefetch(ahead + (t + 1) * bytes);
    __m512i weight[kBlock];
    unroll<kBlock>([&](auto q) {
      int32_t pair;
      std::memcpy(&pair, all.words[first + q] + t, sizeof pair);
      weight[q] = _mm512_set1_epi32(pair);
    });
    unroll<kLoads>([&](auto l) {
      const __m512i a = Form::load(even + l * kLoadBytes), b = Form::load(odd + l * kLoadBytes);
      unroll<kFields>([&](auto field) {
        const __m512i x = Form::template field<decltype(field)::value>(a);
        const __m512i y = Form::template field<decltype(field)::value>(b);
        const __m512i low = _mm512_unpacklo_epi16(x, y), high = _mm512_unpackhi_epi16(x, y);
        constexpr int kAt = 2 * (decltype(l)::value * kFields + decltype(field)::value);
        unroll<kBlock>([&](auto q) {
          constexpr int at = q * kSums + kAt;
          sums[at] = add_products(sums[at], low, weight[q]);
          sums[at + 1] = add_products(sums[at + 1], high, weight[q]);
        });
      });
    });
  }
  unroll<kBlock>([&](auto q) {
    const Vec step = broadcast(all.step[first + q]);
    const Vec offset = broadcast(static_cast<float>(Form::kOffset) * all.sum[first + q]);
    unroll<kSums>([&](auto i) {
      float* at = acc + (first + q) * acc_width + i * Vec::width;
      const Vec sum{_mm512_cvtepi32_ps(sums[q * kSums + i])};
      store(at, fma(step, sum - offset, load(at)));
    });
  });
}

// The same for all queries and whole rows.
template <int kQueries, int kLoads, class Form>
inline void weigh_words_rows(const WordWeights<kQueries>& weights, const uint8_t* rows, int64_t bytes, int64_t tokens,
                             const char* last, float* acc, int64_t acc_width) {
  for (int64_t at = 0; at < bytes; at += kLoads * kLoadBytes) {
    for (int first = 0; first < kQueries; first += word_queries<kQueries, kLoads, Form>()) {
      weigh_words_block<kQueries, kLoads, Form>(weights, first, rows + at, bytes, tokens,
                                                clamped_ahead_of(rows + at, last), acc + at * Form::kFields, acc_width);
    }
  }
}

// Sums in the order of weigh_words_block -> in that of channels.
template <class Form>
inline void order_words(int64_t dim, float* acc, float* row) {
  std::memcpy(row, acc, static_cast<size_t>(dim) * sizeof(float));
  for (int64_t d = 0; d < dim; d += 16) {
    const int64_t place = Form::place(d);
    for (int64_t i = 0; i < 16; ++i) {
      const int64_t word = place % kWords + i;
      acc[d + i] = row[place / kWords * kWords + word % 8 / 4 * 16 + word / 8 * 4 + word % 4];
    }
  }
}

// acc[q] = sum over tokens of weights[q]·numbers, in the order of channels; acc is zero before. `row` is scratch.
template <int kQueries, class Form>
inline void weigh_words(const float* weights, const uint8_t* rows, int64_t dim, int64_t tokens, const char* last,
                        float* acc, int64_t acc_width, float* row) {
  constexpr bool kPair = Form::kFields == 1;
  const int64_t bytes = dim / Form::kFields;
  WordWeights<kQueries> words;
  for (int64_t t = 0; t < tokens; t += kWeightBlock) {
    const int64_t count = tokens - t < kWeightBlock ? tokens - t : kWeightBlock;
    const uint8_t* from = rows + t * bytes;
    quantise_weights<kQueries>(weights + t, count, words);
    if (kPair && bytes % (2 * kLoadBytes) == 0) {
      weigh_words_rows<kQueries, kPair ? 2 : 1, Form>(words, from, bytes, count, last, acc, acc_width);
    } else {
      weigh_words_rows<kQueries, 1, Form>(words, from, bytes, count, last, acc, acc_width);
    }
  }
  for (int q = 0; q < kQueries; ++q) order_words<Form>(dim, acc + q * acc_width, row);
}

// The same for any width of signed integers.
template <int kQueries>
inline void weigh_words(int32_t bits, const float* weights, const uint8_t* rows, int64_t dim, int64_t tokens,
                        const char* last, float* acc, int64_t acc_width, float* row) {
  const auto run = [&](auto form) {
    weigh_words<kQueries, decltype(form)>(weights, rows, dim, tokens, last, acc, acc_width, row);
  };
  switch (bits) {
    case 8: return run(Words<8, true>{});
    case 4: return run(Words<4, true>{});
    default: return run(Words<2, true>{});
  }
}

}  // namespace
}  // namespace winnow
