// The weights of values: softmax numerators of logits, made in place a few tokens at a time, just before values meet
// them. All at once they would be a long while in which nothing is asked for from memory.
#pragma once

#include "attend/contract.hpp"
#include "simd/math.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Tokens whose logits become weights together.
constexpr int64_t kWeightTokens = 32;
static_assert(kLogitStride % kWeightTokens == 0, "rows of logits hold whole blocks");

inline void cap_logits(float* logits, int64_t tokens, float cap) {
  const Vec size = broadcast(cap), inverse = broadcast(1.0f / cap);
  for (int64_t t = 0; t < tokens; t += Vec::width) store(logits + t, size * tanh(load(logits + t) * inverse));
}

// The numbers of a vector's lanes.
alignas(64) constexpr float kLaneNumbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Overwrites row[0..used).
inline void fill_before(float* row, int64_t used, float value) {
  for (int64_t t = 0; t < used; t += Vec::width) {
    store(row + t, if_less(load(kLaneNumbers), broadcast(static_cast<float>(used - t)), broadcast(value), load(row + t)));
  }
}

// Overwrites row[used..padded), up to a whole vector.
inline void fill_behind(float* row, int64_t used, int64_t padded, float value) {
  const int64_t whole = used / Vec::width * Vec::width;
  for (int64_t t = whole; t < padded; t += Vec::width) {
    store(row + t, if_less(load(kLaneNumbers), broadcast(static_cast<float>(used - t)), load(row + t), broadcast(value)));
  }
}

// The largest of row[0..padded), whole blocks.
inline float largest_of(const float* row, int64_t padded) {
  Vec even = broadcast(kNoMax), odd = even;
  for (int64_t t = 0; t < padded; t += 2 * Vec::width) {
    even = max(even, load(row + t));
    odd = max(odd, load(row + t + Vec::width));
  }
  return lane_max(max(even, odd));
}

inline int64_t visible_tokens(const Shape& shape, const Chunk& chunk, int64_t query) {
  const int64_t visible = chunk.visible + shape.token_of(query);
  return visible < 0 ? 0 : least(visible, chunk.tokens);
}

// Of these the first ones that a query does not see.
inline int64_t hidden_tokens(const Shape& shape, const Chunk& chunk, int64_t query) {
  const int64_t hidden = chunk.hidden + shape.token_of(query);
  return hidden < 0 ? 0 : least(hidden, chunk.tokens);
}

// numbers[q][t] *= the scale of token t, for the tokens [first, end); load_scales(t, rest) gives those from t on.
template <int kQueries, class Load>
inline void scale_tokens(float* numbers, int64_t first, int64_t end, const Load& load_scales) {
  for (int64_t t = first; t < end; t += Vec::width) {
    const Vec scale = load_scales(t, end - t);
    unroll<kQueries>([&](auto q) {
      float* at = numbers + q * kLogitStride + t;
      store(at, scale * load(at));
    });
  }
}

// How weights are kept in the place of logits: as they are.
struct InFp32 {
  // Those of two vectors of tokens; returns the sum with them.
  static Vec keep(float* at, Vec a, Vec b, Vec sum) {
    store(at, a);
    store(at + Vec::width, b);
    return sum + a + b;
  }
  // Those of a block from a token on.
  static const float* from(const float* block, int64_t token) { return block + token; }
  // Overwrites those of a block but for the first `seen`.
  static void hide(float* at, int64_t seen) { fill_behind(at, seen, kWeightTokens, 0.0f); }
};

// Those of a chunk and of a block of queries, whose logits lie in rows kLogitStride apart.
template <int kQueries, class Kept = InFp32>
class Weights {
 public:
  // For the queries from `first` on, of which those of the padding see nothing. Gives their maxima to `out`.
  Weights(const Shape& shape, const Chunk& chunk, float* logits, int64_t first, const Partial& out)
      : logits_(logits), tokens_(chunk.tokens), max_(out.max + first), sum_(out.sum + first) {
    const int64_t padded = round_up(chunk.tokens, kWeightTokens);
    for (int64_t q = 0; q < kQueries; ++q) {
      const int64_t query = first + q;
      const int64_t visible = query < shape.queries ? visible_tokens(shape, chunk, query) : 0;
      const int64_t hidden = hidden_tokens(shape, chunk, query);
      float* row = logits + q * kLogitStride;
      if (shape.softcap > 0.0f) cap_logits(row, visible, shape.softcap);
      if (visible < padded) fill_behind(row, visible, padded, kNoMax);
      if (hidden > 0) fill_before(row, hidden, kNoMax);
      max_[q] = largest_of(row, padded);
      visible_[q] = hidden < visible ? visible : 0;
      all_see_ = least(all_see_, visible_[q]);
      sums_[q] = broadcast(0.0f);
    }
  }

  // What weights are multiplied by, token for token, after they were summed up.
  template <class T>
  void scale_by(const T* scales) {
    scales_ = scales;
    load_scales_ = [](const void* from, int64_t t, int64_t rest) {
      return load_up_to(static_cast<const T*>(from) + t, rest);
    };
  }

  // weights[q][t] of the tokens [first, first + tokens), and zeros up to a whole block, kept as Kept says. To be called
  // once for each, from whole blocks on.
  const float* take(int64_t first, int64_t tokens) {
    for (int64_t t = first; t < first + tokens; t += kWeightTokens) take_block(t);
    return logits_ + first;
  }

  // The same with zeros up to a whole span of so many tokens.
  const float* take_spans(int64_t first, int64_t tokens, int64_t span) {
    for (int64_t q = 0; q < kQueries; ++q) {
      float* row = logits_ + q * kLogitStride + first;
      for (int64_t t = round_up(tokens, kWeightTokens); t < round_up(tokens, span); t += Vec::width) {
        store(row + t, broadcast(0.0f));
      }
    }
    return take(first, tokens);
  }

  // Gives the sums of all weights, which have been taken.
  void finish() const {
    for (int64_t q = 0; q < kQueries; ++q) sum_[q] = visible_[q] > 0 ? lane_sum(sums_[q]) : 0.0f;
  }

 private:
  static constexpr int kVectors = kWeightTokens / Vec::width;

  void take_block(int64_t t) {
    unroll<kQueries>([&](auto q) {
      const Vec shift = broadcast(max_[q]);
      float* row = logits_ + q * kLogitStride + t;
      unroll<kVectors / 2>([&](auto i) {
        float* at = row + 2 * i * Vec::width;
        const Vec weight = exp(load(at) - shift), next = exp(load(at + Vec::width) - shift);
        sums_[q] = Kept::keep(at, weight, next, sums_[q]);
      });
    });
    if (t + kWeightTokens > all_see_) hide(t);
    if (scales_) scale(t);
  }

  // Where nothing is seen, the difference from the maximum tells nothing.
  void hide(int64_t t) {
    for (int64_t q = 0; q < kQueries; ++q) {
      const int64_t seen = visible_[q] < t ? 0 : visible_[q] - t;
      if (seen < kWeightTokens) Kept::hide(logits_ + q * kLogitStride + t, seen);
    }
  }

  void scale(int64_t t) {
    scale_tokens<kQueries>(logits_, t, least(t + kWeightTokens, tokens_),
                           [&](int64_t at, int64_t rest) { return load_scales_(scales_, at, rest); });
  }

  float* logits_;
  int64_t tokens_;
  float* max_;
  float* sum_;
  int64_t all_see_ = kMaxChunkTokens;
  int64_t visible_[kQueries];
  Vec sums_[kQueries];
  const void* scales_ = nullptr;
  // Functions that take weights know nothing of the type of scales: packed ones would be compiled for each.
  Vec (*load_scales_)(const void*, int64_t, int64_t) = nullptr;
};

}  // namespace
}  // namespace winnow
