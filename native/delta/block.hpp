// A block of a state: a few vectors of columns, as many as sums of all tokens that go through it together fit into registers.
#pragma once

#include <cstdint>

#include "delta/tokens.hpp"
#include "simd/prefetch.hpp"
#include "simd/processor.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Of a row: with keys of 128 channels a block fills two thirds of a first-level cache of 48 KB, and half of Zen 4's.
constexpr int kDeltaVectors = kZenGeneration == 4 ? 2 : 4;
constexpr int64_t kDeltaColumns = kDeltaVectors * Vec::width;

// Tokens together, where there are registers for them: alone, each would store the state as often as two do.
constexpr int kDeltaTokens = Vec::width == 16 ? 2 : 1;

template <int kTokens>
using TokenColumns = Vec[kTokens][kDeltaVectors];

// What a block has for the keys and queries of tokens.
template <int kTokens>
struct DeltaReads {
  TokenColumns<kTokens> keys, queries;
};

template <int kTokens>
__attribute__((always_inline)) inline void clear_columns(TokenColumns<kTokens>& sums) {
  unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
    unroll<kDeltaVectors>([&](auto v) __attribute__((always_inline)) { sums[t][v] = broadcast(0.0f); });
  });
}

template <int kTokens>
__attribute__((always_inline)) inline void copy_columns(const TokenColumns<kTokens>& from, TokenColumns<kTokens>& to) {
  unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
    unroll<kDeltaVectors>([&](auto v) __attribute__((always_inline)) { to[t][v] = from[t][v]; });
  });
}

// Adds a channel of the state, times that channel of every token.
template <int kTokens>
__attribute__((always_inline)) inline void add_channel(const Vec (&numbers)[kDeltaVectors],
                                                       const float (&tokens)[kTokens][kDeltaRow], int64_t channel,
                                                       TokenColumns<kTokens>& sums) {
  unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
    const Vec by = broadcast(tokens[t][channel]);
    unroll<kDeltaVectors>([&](auto v) __attribute__((always_inline)) { sums[t][v] = fma(numbers[v], by, sums[t][v]); });
  });
}

// Vector v of the first `count` columns of a row; the others are zeros, and their memory is not touched.
template <bool kWhole, class T>
__attribute__((always_inline)) inline Vec load_columns(const T* row, int v, int64_t count) {
  const int64_t first = v * Vec::width;
  if (kWhole) return load(row + first);
  return first < count ? load_up_to(row + first, count - first) : broadcast(0.0f);
}

template <class T>
__attribute__((always_inline)) inline void store_columns(T* row, const Vec (&numbers)[kDeltaVectors], int64_t count) {
  unroll<kDeltaVectors>([&](auto v) __attribute__((always_inline)) {
    const int64_t first = v * Vec::width;
    if (first < count) store_up_to(row + first, numbers[v], count - first);
  });
}

// Rows of a state that are asked for ahead: between those of a block are others, which no processor foresees.
constexpr int64_t kDeltaRowsAhead = 32;

inline void ask_for_columns(const float* row) {
  const char* columns = reinterpret_cast<const char*>(row);
  for (int64_t byte = 0; byte < kDeltaColumns * static_cast<int64_t>(sizeof(float)); byte += kLine) prefetch(columns + byte);
}

// Copies a block in, and reads what it has for tokens.
template <bool kWhole, class Tokens>
void enter_block(const float* state, int64_t stride, int64_t columns, const Tokens& tokens, int64_t dim, float* block,
                 DeltaReads<Tokens::kCount>& reads) {
  TokenColumns<Tokens::kCount> keys, queries;
  clear_columns(keys), clear_columns(queries);
  for (int64_t i = 0; i < dim; ++i, state += stride, block += kDeltaColumns) {
    ask_for_columns(state + kDeltaRowsAhead * stride);
    Vec numbers[kDeltaVectors];
    unroll<kDeltaVectors>([&](auto v) __attribute__((always_inline)) {
      numbers[v] = load_columns<kWhole>(state, v, columns);
      store(block + v * Vec::width, numbers[v]);
    });
    add_channel(numbers, tokens.keys, i, keys);
    add_channel(numbers, tokens.queries, i, queries);
  }
  copy_columns(keys, reads.keys), copy_columns(queries, reads.queries);
}

// What is kept of a channel of a block: of all channels the same, or of each its own.
struct KeptOfHead {
  Vec kept;
  __attribute__((always_inline)) Vec operator[](int64_t) const { return kept; }
};

struct KeptOfChannels {
  const float* kept;
  __attribute__((always_inline)) Vec operator[](int64_t channel) const { return broadcast(kept[channel]); }
};

template <int kTokens>
__attribute__((always_inline)) inline KeptOfHead kept_by(const DeltaTokens<kTokens>& tokens) {
  return {broadcast(tokens.kept)};
}

template <int kTokens>
__attribute__((always_inline)) inline KeptOfChannels kept_by(const DecayedTokens<kTokens>& tokens) {
  return {tokens.kept};
}

// Keys of tokens as what these change is added by them.
template <int kTokens>
inline const DeltaRows<kTokens>& added_keys(const DeltaTokens<kTokens>& tokens) {
  return tokens.keys;
}

template <int kTokens>
inline const DeltaRows<kTokens>& added_keys(const DecayedTokens<kTokens>& tokens) {
  return tokens.added;
}

// What tokens do to a block: it is multiplied by what is kept of it, and for each token's key there are changes.
template <class Tokens>
struct DeltaChange {
  const Tokens& tokens;
  const TokenColumns<Tokens::kCount>& changes;
};

// A channel of a block, changed.
template <int kTokens>
__attribute__((always_inline)) inline void change_channel(const float* block, Vec kept, const DeltaRows<kTokens>& keys,
                                                          int64_t channel, const TokenColumns<kTokens>& changes,
                                                          Vec (&numbers)[kDeltaVectors]) {
  unroll<kDeltaVectors>([&](auto v) __attribute__((always_inline)) { numbers[v] = load(block + v * Vec::width) * kept; });
  unroll<kTokens>([&](auto t) __attribute__((always_inline)) {
    const Vec by = broadcast(keys[t][channel]);
    unroll<kDeltaVectors>([&](auto v) __attribute__((always_inline)) { numbers[v] = fma(by, changes[t][v], numbers[v]); });
  });
}

// Changes a block by tokens, and reads what it has for the next ones.
template <class Tokens>
void change_block(float* block, const DeltaChange<Tokens>& change, const Tokens& next, int64_t dim,
                  DeltaReads<Tokens::kCount>& reads) {
  TokenColumns<Tokens::kCount> changes, keys, queries;
  copy_columns(change.changes, changes), clear_columns(keys), clear_columns(queries);
  const auto kept = kept_by(change.tokens);
  for (int64_t i = 0; i < dim; ++i, block += kDeltaColumns) {
    Vec numbers[kDeltaVectors];
    change_channel(block, kept[i], added_keys(change.tokens), i, changes, numbers);
    unroll<kDeltaVectors>([&](auto v) __attribute__((always_inline)) { store(block + v * Vec::width, numbers[v]); });
    add_channel(numbers, next.keys, i, keys);
    add_channel(numbers, next.queries, i, queries);
  }
  copy_columns(keys, reads.keys), copy_columns(queries, reads.queries);
}

// Changes a block by the last tokens, back to the state.
template <bool kWhole, class Tokens>
void leave_block(const float* block, const DeltaChange<Tokens>& change, int64_t dim, float* state, int64_t stride,
                 int64_t columns) {
  TokenColumns<Tokens::kCount> changes;
  copy_columns(change.changes, changes);
  const auto kept = kept_by(change.tokens);
  for (int64_t i = 0; i < dim; ++i, block += kDeltaColumns, state += stride) {
    Vec numbers[kDeltaVectors];
    change_channel(block, kept[i], added_keys(change.tokens), i, changes, numbers);
    store_columns(state, numbers, kWhole ? kDeltaColumns : columns);
  }
}

}  // namespace
}  // namespace winnow
