#include "rotate/job.hpp"

#include <algorithm>
#include <vector>

#include "runtime/pool.hpp"
#include "sizes.hpp"

namespace winnow {

// Few enough for an even end, enough that the counter costs nothing.
constexpr int64_t kBlockRows = 256;

void rotate_rows(const winnow_rotate_args& args, RotateFunction function) {
  const int64_t blocks = divide_up(args.slots, kBlockRows), floats = rotate_floats(args.dim);
  const int threads = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(args.threads, blocks)));
  std::vector<float> scratch(static_cast<size_t>(threads * floats));
  run_blocks(threads, args.slots, kBlockRows, [&](int slot, int64_t first, int64_t last) {
    function(args, first, last, scratch.data() + slot * floats);
  });
}

}  // namespace winnow
