// Blocks of queries of a prefill, handed out to threads.
#pragma once

#include "prefill/contract.hpp"

namespace winnow {

// Throws std::bad_alloc.
void prefill_rows(const winnow_prefill_args& args, const PrefillKernel& kernel);

}  // namespace winnow
