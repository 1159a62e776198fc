// The promise of a prefill function, whatever the instruction set.
//
// The G·Q queries that share a KV head, token by token, are cut into blocks as wide as a few vectors. A lane is a query:
// products with a key are then sums over broadcast numbers of that key as it lies, maxima and sums of the softmax need
// no step between lanes, and neither keys nor values are transposed or copied. Of all logits only those of a block are
// ever there: what a query paid a token is known once the query saw its last one.
#pragma once

#include "sizes.hpp"
#include "winnow_native.h"

namespace winnow {
namespace {

// Lanes of a block, vectors times lanes of one, of the widest instruction set.
constexpr int64_t kMostLanes = 48;
// Tokens whose logits are softmaxed together: they and their values stay in the first-level cache.
constexpr int64_t kPrefillTokens = 64;

constexpr int64_t prefill_queries(const winnow_prefill_args& args) { return args.group_size * args.queries; }
constexpr int64_t padded_tokens(const winnow_prefill_args& args) { return round_up(args.tokens, kPrefillTokens); }

// Pieces of a thread's scratch, in floats.
struct PrefillSizes {
  int64_t query, sums, rows, weights, maxima;

  constexpr explicit PrefillSizes(const winnow_prefill_args& args)
      : query(args.key_dim * kMostLanes),
        sums(round_up(args.value_dim, 16) * kMostLanes),
        rows(kPrefillTokens * (round_up(args.key_dim, 16) + round_up(args.value_dim, 16))),
        weights((args.paid ? padded_tokens(args) : kPrefillTokens) * kMostLanes),
        maxima((args.paid ? padded_tokens(args) / kPrefillTokens : 1) * kMostLanes) {}

  constexpr int64_t all() const { return query + sums + rows + weights + maxima; }
};

}  // namespace

// Does every `stripes`-th block of a KV head from the `stripe`-th on, and adds what its queries paid to paid[tokens],
// unless that is null. Which blocks are added up in which order never depends on the threads.
using PrefillFunction = void (*)(const winnow_prefill_args&, int64_t head, int64_t stripe, int64_t stripes,
                                 float* scratch, float* paid);

}  // namespace winnow
