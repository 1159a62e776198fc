// Causal attention of some rows of queries over a prompt in panels, for AVX2 and AVX-512.
//
// A row is a query. Its logits lie beside each other, and so do its weights, which values meet as rows meet a panel. Weights
// are relative to the largest of their block of tokens, and become whole numbers where values are. What a token was paid is
// summed up from weights as they were.
#pragma once

#include <cstdint>
#include <cstring>

#include "prefill/avx/laid.hpp"
#include "prefill/contract.hpp"
#include "rounded/avx/panel.hpp"
#include "rounded/avx/products.hpp"
#include "rounded/avx/rounding.hpp"
#include "rounded/avx/tile.hpp"
#include "rounded/sizes.hpp"
#include "simd/math.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Rows that meet a block of tokens while that is in the first-level cache.
constexpr int64_t kQueryRows = 48;
static_assert(kQueryRows % kTileInputs == 0 && kQueryRows % Vec::width == 0, "rows fill tiles and vectors");

constexpr float kHidden = -1e30f;

// Pieces of a thread's scratch, in floats.
template <class T>
struct RowSizes {
  int64_t queries, sums, logits, weights, whole, largest;

  explicit RowSizes(const winnow_prefill_args& args)
      : queries(kQueryRows * round_up(args.key_dim, Vec::width)),
        sums(kQueryRows * round_up(args.value_dim, kPanelOutputs)),
        logits(kQueryRows * kTogetherTokens),
        weights(held_blocks(args) * kQueryRows * kTogetherTokens),
        whole(kRoundsValues<T> ? kQueryRows * kTogetherTokens / 2 : 0),
        largest(held_blocks(args) * kQueryRows) {}

  // Blocks of tokens whose weights are kept: all that any of the rows sees, the first from its beginning on.
  static int64_t held_blocks(const winnow_prefill_args& args) {
    const int64_t tokens = least(args.tokens, prefill_window(args) + kQueryRows + kTogetherTokens);
    return args.paid ? divide_up(tokens, kTogetherTokens) : 1;
  }
  int64_t all() const { return queries + sums + logits + weights + whole + largest; }
};

// Some rows of one KV head, in the order of tokens and then of heads.
template <class T>
class QueryRows {
 public:
  QueryRows(const winnow_prefill_args& args, const PrefillPart& part)
      : args_(args), head_(part.head), laid_(args), words_(part.rows) {
    const RowSizes<T> sizes(args);
    query_dim_ = sizes.queries / kQueryRows;
    value_dim_ = sizes.sums / kQueryRows;
    queries_ = part.scratch;
    sums_ = queries_ + sizes.queries;
    logits_ = sums_ + sizes.sums;
    weights_ = logits_ + sizes.logits;
    largest_ = weights_ + sizes.weights;
    whole_ = reinterpret_cast<int16_t*>(largest_ + sizes.largest);
  }

  // Attends with the queries from the `first`-th on.
  void run(int64_t first, float* paid) {
    begin(first);
    for (int64_t token = from_; token < visible_; token += kTogetherTokens) {
      words_of_block_ = words_ + token / kTogetherTokens * laid_.block_words();
      score(token);
      weigh(weights_of(token), largest_of(token));
      add_values(weights_of(token));
    }
    if (args_.sinks) add_sinks();
    if (paid) pay(paid);
    write();
  }

 private:
  int64_t head_of(int64_t row) const { return head_ * args_.group_size + (first_ + row) % args_.group_size; }
  int64_t token_of(int64_t row) const { return (first_ + row) / args_.group_size; }

  // Of the block that begins with a token, where weights stay.
  int64_t held(int64_t token) const { return args_.paid ? (token - from_) / kTogetherTokens : 0; }
  float* weights_of(int64_t token) const { return weights_ + held(token) * kQueryRows * kTogetherTokens; }
  float* largest_of(int64_t token) const { return largest_ + held(token) * kQueryRows; }

  void begin(int64_t first) {
    first_ = first;
    count_ = least(kQueryRows, prefill_queries(args_) - first);
    const int64_t earlier = args_.tokens - args_.queries;
    for (int64_t row = 0; row < kQueryRows; ++row) {
      const int64_t used = least(row, count_ - 1);  // rows without a query repeat the last one; nobody reads them
      last_seen_[row] = earlier + token_of(used);
      const T* from = static_cast<const T*>(args_.query) + head_of(used) * args_.query_head_stride +
                      token_of(used) * args_.query_token_stride;
      for (int64_t d = 0; d < args_.key_dim; d += Vec::width) {
        store(queries_ + row * query_dim_ + d, load_up_to(from + d, args_.key_dim - d) * broadcast(args_.scaling));
      }
      max_[row] = kHidden;
      sum_[row] = 0.0f;
    }
    visible_ = last_seen_[kQueryRows - 1] + 1;
    const int64_t first_seen = last_seen_[0] + 1 - prefill_window(args_);
    from_ = first_seen < 0 ? 0 : first_seen / kTogetherTokens * kTogetherTokens;
    std::memset(sums_, 0, static_cast<size_t>(kQueryRows * value_dim_) * sizeof(float));
  }

  // Logits of all rows with a block of tokens.
  void score(int64_t token) {
    std::memset(logits_, 0, static_cast<size_t>(kQueryRows * kTogetherTokens) * sizeof(float));
    for (int64_t panel = 0; panel < kTokenPanels; ++panel) {
      const float* keys = reinterpret_cast<const float*>(words_of_block_ + laid_.key_panel(panel));
      for_tiles([&](int64_t row) {
        add_products(queries_ + row * query_dim_, query_dim_, args_.key_dim, keys,
                     logits_ + row * kTogetherTokens + panel * kPanelOutputs, kTogetherTokens);
      });
    }
    if (args_.softcap > 0.0f) cap();
    const int64_t window = prefill_window(args_);
    for (int64_t row = 0; row < kQueryRows; ++row) {
      const int64_t end = last_seen_[row] + 1 - token;
      if (end < kTogetherTokens) hide(row, end, kTogetherTokens);
      if (end > window) hide(row, 0, end - window);
    }
  }

  void cap() {
    const Vec size = broadcast(args_.softcap), inverse = broadcast(1.0f / args_.softcap);
    for (int64_t i = 0; i < kQueryRows * kTogetherTokens; i += Vec::width) {
      store(logits_ + i, size * tanh(load(logits_ + i) * inverse));
    }
  }

  // Tokens of a block that a row does not see, from the first to the end, which may lie outside of the block.
  void hide(int64_t row, int64_t first, int64_t end) {
    float* logits = logits_ + row * kTogetherTokens;
    for (int64_t t = first < 0 ? 0 : first; t < least(end, kTogetherTokens); ++t) logits[t] = kHidden;
  }

  // Logits -> weights, of which a factor for each row is left out; what was summed up is made relative to the new maximum.
  void weigh(float* weights, float* largest) {
    float shrink[kQueryRows], added[kQueryRows];
    for (int64_t row = 0; row < kQueryRows; ++row) {
      const int64_t at = row * kTogetherTokens;
      largest[row] = weigh_row(logits_ + at, weights + at, whole_ + at, added + row);
    }
    for (int64_t row = 0; row < kQueryRows; row += Vec::width) {
      const Vec old = load(max_ + row), here = load(largest + row), shift = max(old, here);
      const Vec factor = exp(here - shift), less = exp(old - shift);
      store(max_ + row, shift);
      store(shrink + row, less);
      store(factors_ + row, factor * broadcast(kRoundsValues<T> ? 1.0f / kMostInput : 1.0f));
      store(sum_ + row, fma(load(sum_ + row), less, load(added + row) * factor));
    }
    for (int64_t row = 0; row < kQueryRows; ++row) {
      if (shrink[row] != 1.0f) multiply(sums_ + row * value_dim_, shrink[row], value_dim_);
    }
  }

  // Returns the largest logit; sum: of the weights before they are rounded.
  float weigh_row(const float* logits, float* weights, int16_t* whole, float* sum) const {
    constexpr int kVectors = kTogetherTokens / Vec::width;
    Vec numbers[kVectors];
    for (int v = 0; v < kVectors; ++v) numbers[v] = load(logits + v * Vec::width);
    Vec most = numbers[0];
    for (int v = 1; v < kVectors; ++v) most = max(most, numbers[v]);
    const float largest = lane_max(most);
    Vec all = broadcast(0.0f);
    for (int v = 0; v < kVectors; ++v) {
      numbers[v] = exp(numbers[v] - broadcast(largest));
      all = all + numbers[v];
    }
    if constexpr (kRoundsValues<T>) store_whole(numbers, broadcast(static_cast<float>(kMostInput)), whole);
    if (args_.paid || !kRoundsValues<T>) {
      for (int v = 0; v < kVectors; ++v) store(weights + v * Vec::width, numbers[v]);
    }
    *sum = lane_sum(all);
    return largest;
  }

  static void multiply(float* numbers, float factor, int64_t count) {
    for (int64_t i = 0; i < count; i += Vec::width) store(numbers + i, load(numbers + i) * broadcast(factor));
  }

  void add_values(const float* weights) {
    if constexpr (!kRoundsValues<T>) scale_weights(weights);
    for (int64_t panel = 0; panel < laid_.value_panels; ++panel) {
      const uint32_t* values = words_of_block_ + laid_.value_panel(panel);
      const float* scales = reinterpret_cast<const float*>(words_of_block_ + laid_.value_scales(panel));
      for_tiles([&](int64_t row) {
        float* to = sums_ + row * value_dim_ + panel * kPanelOutputs;
        if constexpr (kRoundsValues<T>) {
          const RoundedRows rows{1, whole_ + row * kRoundedTogether, factors_ + row};
          add_products(rows, 1, reinterpret_cast<const int16_t*>(values), scales, to, value_dim_);
        } else {
          add_products(logits_ + row * kTogetherTokens, kTogetherTokens, kTogetherTokens,
                       reinterpret_cast<const float*>(values), to, value_dim_);
        }
      });
    }
  }

  // Weights in fp32 with their factor, in place of the logits.
  void scale_weights(const float* weights) {
    for (int64_t row = 0; row < kQueryRows; ++row) {
      for (int64_t t = row * kTogetherTokens; t < (row + 1) * kTogetherTokens; t += Vec::width) {
        store(logits_ + t, load(weights + t) * broadcast(factors_[row]));
      }
    }
  }

  // The model's sinks join the denominators.
  void add_sinks() {
    for (int64_t row = 0; row < kQueryRows; ++row) factors_[row] = args_.sinks[head_of(least(row, count_ - 1))];
    for (int64_t row = 0; row < kQueryRows; row += Vec::width) {
      const Vec sink = load(factors_ + row), old = load(max_ + row), shift = max(old, sink), less = exp(old - shift);
      store(sum_ + row, fma(load(sum_ + row), less, exp(sink - shift)));
      store(max_ + row, shift);
      store(factors_ + row, less);
    }
    for (int64_t row = 0; row < kQueryRows; ++row) multiply(sums_ + row * value_dim_, factors_[row], value_dim_);
  }

  // Adds to paid[token] what all rows paid it, the mean over the heads.
  void pay(float* paid) {
    for (int64_t token = from_; token < visible_; token += kTogetherTokens) {
      const float* largest = largest_of(token);
      for (int64_t row = 0; row < kQueryRows; row += Vec::width) {
        const Vec factor = exp(load(largest + row) - load(max_ + row)) / load(sum_ + row);
        store(factors_ + row, factor * broadcast(1.0f / static_cast<float>(args_.group_size)));
      }
      const float* weights = weights_of(token);
      for (int64_t t = 0; t < least(kTogetherTokens, visible_ - token); t += Vec::width) {
        Vec all = broadcast(0.0f);
        for (int64_t row = 0; row < count_; ++row) {
          all = fma(load(weights + row * kTogetherTokens + t), broadcast(factors_[row]), all);
        }
        const int64_t there = visible_ - token - t;
        store_up_to(paid + token + t, load_up_to(paid + token + t, there) + all, there);
      }
    }
  }

  void write() const {
    const int64_t dim = args_.value_dim, heads = args_.heads * args_.group_size;
    for (int64_t row = 0; row < count_; ++row) {
      T* to = static_cast<T*>(args_.output) + (token_of(row) * heads + head_of(row)) * dim;
      const Vec per_sum = broadcast(1.0f / sum_[row]);
      for (int64_t d = 0; d < dim; d += Vec::width) {
        store_up_to(to + d, load(sums_ + row * value_dim_ + d) * per_sum, dim - d);
      }
    }
  }

  template <class Body>
  void for_tiles(const Body& body) const {
    for (int64_t row = 0; row < round_up(count_, kTileInputs); row += kTileInputs) body(row);
  }

  const winnow_prefill_args& args_;
  const int64_t head_;
  const LaidRows<T> laid_;
  const uint32_t* words_;
  const uint32_t* words_of_block_ = nullptr;
  int64_t query_dim_, value_dim_;  // padded
  float *queries_;                 // [kQueryRows, query_dim_], times the scaling
  float *sums_;                    // [kQueryRows, value_dim_] of values, relative to max_
  float *logits_;                  // [kQueryRows, kTogetherTokens]
  float* weights_;                 // [blocks, kQueryRows, kTogetherTokens]
  int16_t* whole_;                 // [kQueryRows, kTogetherTokens] of one block, where weights are rounded
  float* largest_;                 // [blocks, kQueryRows] logits
  int64_t first_ = 0, count_ = 0;
  int64_t from_ = 0, visible_ = 0;  // the first token of the first block that is seen, and the end of what is
  int64_t last_seen_[kQueryRows];
  alignas(64) float max_[kQueryRows];
  alignas(64) float sum_[kQueryRows];
  alignas(64) float factors_[kQueryRows];
};

template <class T>
void attend_rows(const winnow_prefill_args& args, const PrefillPart& part) {
  QueryRows<T> rows(args, part);
  const int64_t blocks = divide_up(prefill_queries(args), kQueryRows);
  for (int64_t i = part.stripe; i < blocks; i += part.stripes) rows.run(i * kQueryRows, part.paid);
}

template <class T>
int64_t laid_words(const winnow_prefill_args& args) {
  return divide_up(args.tokens, kTogetherTokens) * LaidRows<T>(args).block_words();
}

template <class T>
int64_t row_floats(const winnow_prefill_args& args) {
  return RowSizes<T>(args).all();
}

template <class T>
constexpr PrefillKernel kPrefillInPanels = {attend_rows<T>, row_floats<T>,   laid_words<T>,
                                            lay_block<T>,   kTogetherTokens, true};

}  // namespace
}  // namespace winnow
