// Rows of a pruning call, handed out to threads.
#pragma once

#include "prune/contract.hpp"

namespace winnow {

// Throws std::bad_alloc.
void run_on_rows(const winnow_prune_args& args, PruneFunction function);

}  // namespace winnow
