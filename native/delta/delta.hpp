// Delta rules, a block of a state's columns at a time: it is copied next to the processor, tokens go through it a few at once,
// and then it goes back.
#pragma once

#include <cstdint>
#include <utility>

#include "delta/block.hpp"
#include "delta/channels.hpp"
#include "delta/contract.hpp"
#include "delta/tokens.hpp"
#include "delta/weights.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// What tokens change in a block, from what it had for them before; writes their outputs. Values and outputs are those of the
// first token.
template <class T, int kTokens>
void answer(const winnow_delta_args& args, int64_t count, int64_t columns, const DeltaWeights<kTokens>& weights,
            const DeltaReads<kTokens>& reads, const T* values, T* outputs, TokenColumns<kTokens>& changes) {
  clear_columns(changes);
  for (int64_t t = 0; t < count; ++t) {
    Vec found[kDeltaVectors];
    unroll<kDeltaVectors>([&](auto v) {
      Vec known = reads.keys[t][v] * broadcast(weights.known[t]);
      found[v] = reads.queries[t][v] * broadcast(weights.queried[t]);
      for (int64_t s = 0; s < t; ++s) {
        known = fma(changes[s][v], broadcast(weights.keys[t][s]), known);
        found[v] = fma(changes[s][v], broadcast(weights.queries[t][s]), found[v]);
      }
      const Vec wrong = load_columns<false>(values + t * args.value_token, v, columns) - known;
      changes[t][v] = wrong * broadcast(weights.rates[t]);
      found[v] = fma(changes[t][v], broadcast(weights.queries[t][t]), found[v]);
    });
    store_columns(outputs + t * args.value_heads * args.value_dim, found, columns);
  }
  for (int64_t t = 0; t < count; ++t) {
    unroll<kDeltaVectors>([&](auto v) { changes[t][v] = changes[t][v] * broadcast(weights.added[t]); });
  }
}

// Tokens and their weights, which do not depend on the state.
template <class Tokens>
struct DeltaStep {
  Tokens tokens;
  DeltaWeights<Tokens::kCount> weights;
};

template <class Tokens, class T>
inline void read_step(const winnow_delta_args& args, const DeltaHead<T>& head, int64_t first, DeltaStep<Tokens>& to) {
  read_tokens(args, head, first, to.tokens);
  to.weights = weigh_tokens(args, head, first, to.tokens);
}

template <class T, class Tokens>
void go_through(const winnow_delta_args& args, const DeltaHead<T>& head, int64_t columns) {
  constexpr int kTokens = Tokens::kCount;
  alignas(64) float block[WINNOW_DELTA_KEYS * kDeltaColumns];
  DeltaStep<Tokens> one, other, *step = &one, *next = &other;
  DeltaReads<kTokens> reads;
  TokenColumns<kTokens> changes;
  const int64_t dim = args.key_dim, width = args.value_dim;
  const bool whole = columns == kDeltaColumns;
  read_step(args, head, 0, *step);
  const auto enter = whole ? enter_block<true, Tokens> : enter_block<false, Tokens>;
  const auto leave = whole ? leave_block<true, Tokens> : leave_block<false, Tokens>;
  enter(head.state, width, columns, step->tokens, dim, block, reads);
  for (int64_t first = 0; first < args.tokens; first += kTokens) {
    const int64_t count = least(kTokens, args.tokens - first);
    answer(args, count, columns, step->weights, reads, head.values + first * args.value_token,
           head.outputs + first * args.value_heads * width, changes);
    const DeltaChange<Tokens> change{step->tokens, changes};
    if (first + kTokens < args.tokens) {
      read_step(args, head, first + kTokens, *next);
      change_block(block, change, next->tokens, dim, reads);
      std::swap(step, next);
    } else {
      leave(block, change, dim, head.state, width, columns);
    }
  }
}

template <class T>
void delta(const winnow_delta_args& args, int64_t first, int64_t last) {
  const int64_t blocks = divide_up(args.value_dim, kDeltaColumns);
  const bool alone = args.tokens == 1;
  const auto of_heads = alone ? go_through<T, DeltaTokens<1>> : go_through<T, DeltaTokens<kDeltaTokens>>;
  const auto of_channels = alone ? go_through<T, DecayedTokens<1>> : go_through<T, DecayedTokens<kDeltaTokens>>;
  const auto run = args.per_channel ? of_channels : of_heads;
  for (int64_t each = first; each < last; ++each) {
    const int64_t head = each / blocks, column = each % blocks * kDeltaColumns;
    const int64_t columns = least(kDeltaColumns, args.value_dim - column);
    run(args, delta_head<T>(args, head / args.value_heads, head % args.value_heads, column), columns);
  }
}

template <class T>
constexpr DeltaKernel kDelta{delta<T>, kDeltaColumns};

}  // namespace
}  // namespace winnow
