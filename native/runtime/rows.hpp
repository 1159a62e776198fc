// Rows of a call, handed out to threads.
#pragma once

#include <algorithm>
#include <vector>

#include "runtime/pool.hpp"
#include "sizes.hpp"

namespace winnow {

// Calls function(args, first, last, scratch) for all args.slots rows, `at_once` of them a call. Every thread has `floats`
// of scratch. Throws std::bad_alloc.
template <class Args, class Function>
void run_on_rows(const Args& args, int64_t at_once, int64_t floats, Function function) {
  const int64_t blocks = divide_up(args.slots, at_once);
  const int threads = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(args.threads, blocks)));
  std::vector<float> scratch(static_cast<size_t>(threads * floats));
  run_blocks(threads, args.slots, at_once, [&](int slot, int64_t first, int64_t last) {
    function(args, first, last, scratch.data() + slot * floats);
  });
}

}  // namespace winnow
