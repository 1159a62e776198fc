// The promise of a pruning function, whatever the instruction set.
#pragma once

#include "sizes.hpp"
#include "winnow_native.h"

namespace winnow {

// Does rows first to last - 1 with the scratch of one row.
using PruneFunction = void (*)(const winnow_prune_args&, int64_t first, int64_t last, float* scratch);

namespace {

// Rows that a thread takes at a time: few enough for an even end, enough that the counter costs nothing.
constexpr int64_t kPrunedAtOnce = 64;

// Words of 64 bits that hold a flag for every channel.
constexpr int64_t mask_words(int64_t dim) { return divide_up(dim, 64); }

// Scratch of a pruned row: two masks of words, and the row twice, padded to whole words.
constexpr int64_t prune_floats(int64_t dim) { return round_up(mask_words(dim) * (2 * 2 + 2 * 64), 16); }

}  // namespace
}  // namespace winnow
