// The promise of a prefill function, whatever the instruction set.
//
// The G·Q queries that share a KV head, token by token, are cut into blocks as wide as a few vectors. A lane is a query:
// products with a key are then sums over broadcast numbers of that key as it lies, maxima and sums of the softmax need
// no step between lanes, and neither keys nor values are transposed or copied. Of all logits only those of a block are
// ever there: what a query paid a token is known once the query saw its last one. Tokens before the window of a block's
// first query are skipped. Tiles (prefill/amx/) keep to the same, but for windows, which they have none of, and for rows,
// which are laid as tiles first.
#pragma once

#include "sizes.hpp"
#include "winnow_native.h"

namespace winnow {
namespace {

constexpr int64_t prefill_queries(const winnow_prefill_args& args) { return args.group_size * args.queries; }

// Tokens that a query sees at most, its own among them.
constexpr int64_t prefill_window(const winnow_prefill_args& args) {
  return args.window ? least(args.window, args.tokens) : args.tokens;
}

}  // namespace

// What a thread does at a time: every `stripes`-th block of a KV head from the `stripe`-th on. Which blocks are added up
// in which order never depends on the threads.
struct PrefillPart {
  int64_t head, stripe, stripes;
  const uint32_t* rows;  // of the head, where they had to be laid
  float* scratch;
  float* paid;  // [tokens], to which is added what the queries of these blocks paid, or null
};

// A way to attend over prompts.
struct PrefillKernel {
  void (*attend)(const winnow_prefill_args&, const PrefillPart&);
  int64_t (*scratch_floats)(const winnow_prefill_args&);  // of a thread
  int64_t (*row_words)(const winnow_prefill_args&);       // that rows of a head are laid in; null: they are read as they lie
  void (*lay_rows)(const winnow_prefill_args&, int64_t head, int64_t block, uint32_t* rows);
  int64_t laid_tokens;  // of a block that lay_rows lays
  bool has_windows;     // false: queries see all tokens before theirs
};

}  // namespace winnow
