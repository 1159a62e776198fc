// Logits of packed integers by integer products, see integer_dots.hpp.
#pragma once

#include <cstring>

#include "contract.hpp"
#include "integer_words.hpp"
#include "prefetch.hpp"

namespace winnow {
namespace {

// A block of queries as words: those of the first 32 numbers of every query, then the next 32 of every query, ...
template <int kQueries>
struct WordQueries {
  static constexpr int kTokens = Vec::width / kQueries;  // of a tile
  const int16_t* words;
  // In the lanes of every query: what its words stand for, and what is to be added for numbers taken too large and
  // for anything else.
  alignas(64) float step[Vec::width];
  alignas(64) float offset[Vec::width];
};

// `query` is in fp32, in the order of scratch.
template <int kQueries, class Form>
inline WordQueries<kQueries> quantise_queries(const float* query, int64_t dim, const float* bias, int16_t* words) {
  WordQueries<kQueries> result;
  result.words = words;
  unroll<kQueries>([&](auto q) {
    const auto at = [&](int64_t d) { return load(query + d * kQueries + q * Vec::width); };
    Vec most = broadcast(0.0f), sum = broadcast(0.0f);
    for (int64_t d = 0; d < dim; d += Vec::width) {
      most = max(most, magnitude(at(d)));
      sum = sum + at(d);
    }
    const float largest = lane_max(most);
    const Vec factor = broadcast(steps_of(largest));
    for (int64_t d = 0; d < dim; d += Vec::width) {
      const int64_t place = Form::place(d);
      store_words(words + place / kWords * kWords * kQueries + q * kWords + place % kWords, at(d), factor);
    }
    const float offset = bias[q] - static_cast<float>(Form::kOffset) * lane_sum(sum);
    for (int lane = 0; lane < result.kTokens; ++lane) {
      result.step[q * result.kTokens + lane] = step_of(largest);
      result.offset[q * result.kTokens + lane] = offset;
    }
  });
  return result;
}

// logits[q][t] for a tile of tokens, of which the last is repeated where there are fewer.
template <int kQueries, class Form>
inline void score_words_tile(const WordQueries<kQueries>& queries, const uint8_t* rows, int64_t bytes, int64_t tokens,
                             const char* ahead, float* logits) {
  constexpr int kTokens = Vec::width / kQueries;
  const uint8_t* row[kTokens];
  unroll<kTokens>([&](auto t) { row[t] = rows + (t < tokens ? t : tokens - 1) * bytes; });
  __m512i acc[Vec::width];
  unroll<Vec::width>([&](auto i) { acc[i] = _mm512_setzero_si512(); });
  const int16_t* words = queries.words;
  for (int64_t at = 0; at < bytes; at += kLoadBytes) {
    __m512i loaded[kTokens];
    unroll<kTokens>([&](auto t) {
      prefetch(ahead + t * bytes + at);
      loaded[t] = Form::load(row[t] + at);
    });
    unroll<Form::kFields>([&](auto field) {
      unroll<kTokens>([&](auto t) {
        const __m512i key = Form::template field<decltype(field)::value>(loaded[t]);
        unroll<kQueries>([&](auto q) {
          constexpr int pair = q * kTokens + t;
          acc[pair] = add_products(acc[pair], key, _mm512_loadu_si512(words + (field * kQueries + q) * kWords));
        });
      });
    });
    words += Form::kFields * kQueries * kWords;
  }
  Vec sums[Vec::width];
  unroll<Vec::width>([&](auto i) { sums[i] = {_mm512_cvtepi32_ps(acc[i])}; });
  alignas(64) float dots[Vec::width];
  store(dots, fma(row_sums(sums), load(queries.step), load(queries.offset)));
  for (int q = 0; q < kQueries; ++q) {
    std::memcpy(logits + q * kLogitStride, dots + q * kTokens, kTokens * sizeof(float));
  }
}

// logits[q][t] = query[q] · numbers[t] + bias[q]; writes up to a tile past the last token.
template <int kQueries, class Form>
inline void score_words(const float* query, int64_t dim, const float* bias, const uint8_t* rows, int64_t tokens,
                        const char* last, int16_t* words, float* logits) {
  constexpr int kTokens = Vec::width / kQueries;
  const int64_t bytes = dim / Form::kFields;
  const auto queries = quantise_queries<kQueries, Form>(query, dim, bias, words);
  for (int64_t t = 0; t < tokens; t += kTokens) {
    const uint8_t* tile = rows + t * bytes;
    score_words_tile<kQueries, Form>(queries, tile, bytes, tokens - t, clamped_ahead_of(tile, last), logits + t);
  }
}

// The same for any width of integers.
template <int kQueries, bool kSigned>
inline void score_words(int32_t bits, const float* query, int64_t dim, const float* bias, const uint8_t* rows,
                        int64_t tokens, const char* last, int16_t* words, float* logits) {
  const auto run = [&](auto form) {
    score_words<kQueries, decltype(form)>(query, dim, bias, rows, tokens, last, words, logits);
  };
  switch (bits) {
    case 8: return run(Words<8, kSigned>{});
    case 4: return run(Words<4, kSigned>{});
    default: return run(Words<2, kSigned>{});
  }
}

}  // namespace
}  // namespace winnow
