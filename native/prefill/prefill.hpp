// Causal attention of a block of queries over a dense prompt, with what every token was paid, or that alone.
#pragma once

#include <cstring>
#include <type_traits>

#include "prefill/contract.hpp"
#include "prefill/lanes.hpp"
#include "prefill/singles.hpp"
#include "simd/element.hpp"
#include "simd/math.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

#ifdef WINNOW_ZEN
#include "prefill/avx512/pairs.hpp"
#endif

namespace winnow {
namespace {

// Tokens whose logits are softmaxed together: they and their values stay in the first-level cache.
constexpr int64_t kPrefillTokens = 64;

// Tokens, in whole blocks, that a block of queries sees at most, from the tile on in which the first one's window begins.
constexpr int64_t seen_tokens(const winnow_prefill_args& args) {
  return round_up(least(args.tokens, prefill_window(args) + kMostLanes + kTileRows), kPrefillTokens);
}

// Pieces of a thread's scratch, in floats.
struct PrefillSizes {
  int64_t query, sums, rows, logits, weights, maxima;

  constexpr explicit PrefillSizes(const winnow_prefill_args& args)
      : query(args.key_dim * kMostLanes),
        sums(round_up(args.value_dim, 16) * kMostLanes),
        rows(kPrefillTokens * (round_up(args.key_dim, 16) + round_up(args.value_dim, 32))),
        logits(kPrefillTokens * kMostLanes),
        weights(args.paid ? seen_tokens(args) * kMostLanes : 0),
        maxima((args.paid ? seen_tokens(args) / kPrefillTokens : 1) * kMostLanes) {}

  constexpr int64_t all() const { return query + sums + rows + logits + weights + maxima; }
};

constexpr float kUnseen = -1e30f;

// acc[row] += Σ_i numbers[row·row_stride + i·step] · lanes[i·kLanes ..] for i < count.
template <class Numbers>
__attribute__((always_inline)) inline void multiply_tile(Lanes (&acc)[kTileRows], const float* numbers,
                                                         int64_t row_stride, int64_t step, const float* lanes,
                                                         int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const Lanes x = load_lanes(lanes + i * kLanes);
    unroll<kTileRows>([&](auto row) {
      const Vec number = broadcast(numbers[row * row_stride + i * step]);
      unroll<kBlockVectors>([&](auto v) { acc[row].v[v] = Numbers::add(acc[row].v[v], number, x.v[v]); });
    });
  }
}

// A block of queries of one KV head, whose numbers meet those of keys and values as Numbers says: Numbers::kTogether of
// them are a float.
template <class T, class Numbers>
class QueryBlock {
 public:
  QueryBlock(const winnow_prefill_args& args, int64_t head, float* scratch) : args_(args), head_(head), sizes_(args) {
    query_ = scratch;
    sums_ = query_ + sizes_.query;
    rows_ = sums_ + sizes_.sums;
    logits_ = rows_ + sizes_.rows;
    weights_ = logits_ + sizes_.logits;
    maxima_ = weights_ + sizes_.weights;
  }

  // Attends with the queries from the `first`-th on, in the order of tokens and then of heads.
  void run(int64_t first, float* paid) {
    begin(first);
    for (int64_t token = from_; token < visible_; token += kPrefillTokens) over_tokens(token);
    finish();
    if (paid) pay(paid);
    if (args_.output) write();
  }

 private:
  int64_t head_of(int64_t lane) const { return head_ * args_.group_size + (first_ + lane) % args_.group_size; }
  int64_t token_of(int64_t lane) const { return (first_ + lane) / args_.group_size; }

  // What weights relative to the logit `a` are times those relative to `b`.
  static Vec ratio(Vec a, Vec b) { return exp((a - b) * broadcast(1.0f / Numbers::kUnit)); }

  void begin(int64_t first) {
    first_ = first;
    lanes_ = least(kLanes, prefill_queries(args_) - first);
    const int64_t earlier = args_.tokens - args_.queries;
    visible_ = earlier + token_of(lanes_ - 1) + 1;
    first_sees_ = earlier + token_of(0) + 1;
    const int64_t window = prefill_window(args_);
    from_ = first_sees_ > window ? (first_sees_ - window) / kTileRows * kTileRows : 0;
    last_from_ = visible_ - window;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const int64_t used = least(lane, lanes_ - 1);  // lanes without a query repeat the last one; nobody reads them
      last_seen_[lane] = static_cast<float>(earlier + token_of(used));
      const T* from = static_cast<const T*>(args_.query) + head_of(used) * args_.query_head_stride +
                      token_of(used) * args_.query_token_stride;
      Numbers::gather(from, args_.key_dim, args_.scaling, query_ + lane);
    }
    std::memset(sums_, 0, static_cast<size_t>(sizes_.sums) * sizeof(float));
    max_ = all_lanes(kUnseen);
    sum_ = all_lanes(0.0f);
  }

  void over_tokens(int64_t token) {
    const int64_t count = least(kPrefillTokens, args_.tokens - token);
    const int64_t used = least(count, visible_ - token);
    float* weights = args_.paid ? weights_of(token) : logits_;
    const Lanes largest = score(token, count);
    const Lanes shift = combine(max_, largest, [](Vec a, Vec b) { return max(a, b); });
    const Lanes shrink = combine(max_, shift, ratio);
    sum_ = combine(sum_, shrink, [](Vec a, Vec b) { return a * b; });
    sum_ = Numbers::weigh(logits_, round_up(used, kTileRows), shift, weights, sum_);
    max_ = shift;
    if (args_.paid) store_lanes(maxima_of(token), shift);
    if (args_.output) add_values(token, used, weights, shrink);
  }

  // Of the tokens from a whole block on, where weights stay, and what they are relative to.
  float* weights_of(int64_t token) const { return weights_ + (token - from_) / Numbers::kTogether * kLanes; }
  float* maxima_of(int64_t token) const { return maxima_ + (token - from_) / kPrefillTokens * kLanes; }

  // Logits of a few tokens, masked, and the largest of every lane.
  Lanes score(int64_t token, int64_t count) {
    const T* from = static_cast<const T*>(args_.keys) + head_ * args_.key_head_stride + token * args_.key_token_stride;
    const FloatRows keys = Numbers::keys(from, args_.key_token_stride, args_.key_dim, count, rows_);
    const int64_t used = least(count, visible_ - token);
    Lanes largest = all_lanes(kUnseen);
    for (int64_t t = 0; t < used; t += kTileRows) {
      Lanes acc[kTileRows];
      unroll<kTileRows>([&](auto row) { acc[row] = all_lanes(0.0f); });
      multiply_tile<Numbers>(acc, keys.data + t * keys.stride, keys.stride, 1, query_,
                             divide_up(args_.key_dim, Numbers::kTogether));
      for (auto& row : acc) {
        for (auto& vector : row.v) vector = Numbers::logits(vector, args_.scaling);
      }
      if (args_.softcap > 0.0f) cap(acc);
      if (token + t + kTileRows > first_sees_) hide_later(acc, token + t);
      if (token + t < last_from_) hide_earlier(acc, token + t);
      unroll<kTileRows>([&](auto row) {
        largest = combine(largest, acc[row], [](Vec a, Vec b) { return max(a, b); });
        store_lanes(logits_ + (t + row) * kLanes, acc[row]);
      });
    }
    return largest;
  }

  void cap(Lanes (&acc)[kTileRows]) const {
    const float most = args_.softcap * Numbers::kUnit;
    const Vec size = broadcast(most), inverse = broadcast(1.0f / most);
    for (auto& row : acc) {
      for (auto& vector : row.v) vector = size * tanh(vector * inverse);
    }
  }

  // Tokens behind a query's own.
  void hide_later(Lanes (&acc)[kTileRows], int64_t token) const {
    for (int row = 0; row < kTileRows; ++row) {
      const Vec here = broadcast(static_cast<float>(token + row));
      for (int v = 0; v < kBlockVectors; ++v) {
        acc[row].v[v] = if_less(load(last_seen_ + v * Vec::width), here, broadcast(kUnseen), acc[row].v[v]);
      }
    }
  }

  // Tokens before a query's window.
  void hide_earlier(Lanes (&acc)[kTileRows], int64_t token) const {
    for (int row = 0; row < kTileRows; ++row) {
      const Vec end = broadcast(static_cast<float>(token + row + prefill_window(args_)));
      for (int v = 0; v < kBlockVectors; ++v) {
        acc[row].v[v] = if_less(load(last_seen_ + v * Vec::width), end, acc[row].v[v], broadcast(kUnseen));
      }
    }
  }

  // Of the tokens from `token` on, as many as any query sees.
  void add_values(int64_t token, int64_t used, const float* weights, const Lanes& shrink) {
    const T* from =
        static_cast<const T*>(args_.values) + head_ * args_.value_head_stride + token * args_.value_token_stride;
    const FloatRows values = Numbers::values(from, args_.value_token_stride, args_.value_dim, used,
                                             rows_ + kPrefillTokens * round_up(args_.key_dim, 16));
    for (int64_t d = 0; d < args_.value_dim; d += kTileRows) {
      Lanes acc[kTileRows];
      unroll<kTileRows>([&](auto row) {
        acc[row] = combine(load_lanes(sums_ + (d + row) * kLanes), shrink, [](Vec a, Vec b) { return a * b; });
      });
      multiply_tile<Numbers>(acc, values.data + d, 1, values.stride, weights, divide_up(used, Numbers::kTogether));
      unroll<kTileRows>([&](auto row) { store_lanes(sums_ + (d + row) * kLanes, acc[row]); });
    }
  }

  // From here on sum_ is the denominator, with the model's sinks, and max_ what it is relative to.
  void finish() {
    if (!args_.sinks) return;
    float sinks[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      sinks[lane] = args_.sinks[head_of(least(lane, lanes_ - 1))] * Numbers::kUnit;
    }
    const Lanes extra = load_lanes(sinks);
    const Lanes shift = combine(max_, extra, [](Vec a, Vec b) { return max(a, b); });
    const Lanes shrink = combine(max_, shift, ratio), sink = combine(extra, shift, ratio);
    sum_ = combine(combine(sum_, shrink, [](Vec a, Vec b) { return a * b; }), sink, [](Vec a, Vec b) { return a + b; });
    for (int64_t d = 0; d < args_.value_dim; ++d) {
      const Lanes scaled = combine(load_lanes(sums_ + d * kLanes), shrink, [](Vec a, Vec b) { return a * b; });
      store_lanes(sums_ + d * kLanes, scaled);
    }
    max_ = shift;
  }

  // Adds to paid[token] what all lanes paid it, the mean over the heads.
  void pay(float* paid) const {
    float shares[kLanes];
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      shares[lane] = lane < lanes_ ? 1.0f / static_cast<float>(args_.group_size) : 0.0f;
    }
    const Lanes per_sum = combine(load_lanes(shares), sum_, [](Vec a, Vec b) { return a / b; });
    for (int64_t token = from_; token < visible_; token += kPrefillTokens) {
      const Lanes shift = load_lanes(maxima_of(token));
      const Lanes factor = combine(combine(shift, max_, ratio), per_sum, [](Vec a, Vec b) { return a * b; });
      const int64_t used = least(kPrefillTokens, visible_ - token);
      for (int64_t t = 0; t < used; t += Vec::width) {
        pay_vector(factor, weights_of(token + t), used - t, paid + token + t);
      }
    }
  }

  // The tokens of one vector, or as many as `count`.
  void pay_vector(const Lanes& factor, const float* weights, int64_t count, float* paid) const {
    Vec rows[Vec::width];
    for (int64_t i = 0; i < Vec::width; ++i) {
      rows[i] = broadcast(0.0f);
      if (i >= count) continue;
      const Lanes weight = Numbers::weight(weights, i);
      unroll<kBlockVectors>([&](auto v) { rows[i] = fma(weight.v[v], factor.v[v], rows[i]); });
    }
    const Vec sums = row_sums(rows);
    if (count >= Vec::width) {
      store(paid, load(paid) + sums);
    } else {
      store_first(paid, load_first(paid, count) + sums, count);
    }
  }

  void write() const {
    float denominators[kLanes], numbers[Vec::width];
    store_lanes(denominators, sum_);
    const int64_t dim = args_.value_dim, heads = args_.heads * args_.group_size;
    for (int64_t lane = 0; lane < lanes_; ++lane) {
      T* to = static_cast<T*>(args_.output) + (token_of(lane) * heads + head_of(lane)) * dim;
      const Vec per_sum = broadcast(1.0f / denominators[lane]);
      for (int64_t d = 0; d < dim; d += Vec::width) {
        const int64_t count = least(Vec::width, dim - d);
        for (int64_t i = 0; i < count; ++i) numbers[i] = sums_[(d + i) * kLanes + lane];
        if (count == Vec::width) {
          store(to + d, load(numbers) * per_sum);
        } else {
          store_first(to + d, load_first(numbers, count) * per_sum, count);
        }
      }
    }
  }

  const winnow_prefill_args& args_;
  const int64_t head_;
  const PrefillSizes sizes_;
  float *query_;           // [D, kLanes] as they meet keys
  float *sums_;            // [Dv, kLanes] of values, relative to max_
  float *rows_;            // keys and then values of a few tokens, where they are copied
  float *logits_;          // [kPrefillTokens, kLanes]
  float *weights_;         // [seen tokens, kLanes] relative to the maximum so far, where they stay
  float *maxima_;          // [seen tokens / kPrefillTokens, kLanes], what that was
  int64_t first_ = 0, lanes_ = 0;
  int64_t visible_ = 0, first_sees_ = 0;  // the ends of what the last and the first query see
  int64_t from_ = 0, last_from_ = 0;      // the first token of a tile that is seen, and of the last query's window
  float last_seen_[kLanes];
  Lanes max_, sum_;
};

template <class T, class Numbers>
void prefill(const winnow_prefill_args& args, const PrefillPart& part) {
  QueryBlock<T, Numbers> block(args, part.head, part.scratch);
  const int64_t blocks = divide_up(prefill_queries(args), kLanes);
  for (int64_t i = part.stripe; i < blocks; i += part.stripes) block.run(i * kLanes, part.paid);
}

inline int64_t prefill_floats(const winnow_prefill_args& args) { return PrefillSizes(args).all(); }

template <class T>
void prefill_numbers(const winnow_prefill_args& args, const PrefillPart& part) {
#ifdef WINNOW_ZEN
  // Scores alone, without an output, keep fp32's digits.
  if constexpr (std::is_same_v<T, Bf16>) {
    if (args.output) return prefill<T, PairedNumbers>(args, part);
  }
#endif
  prefill<T, Singles<T>>(args, part);
}

template <class T>
constexpr PrefillKernel kPrefill = {prefill_numbers<T>, prefill_floats, nullptr, nullptr, 0, true};

}  // namespace
}  // namespace winnow
