#include "prune/job.hpp"

#include <algorithm>
#include <atomic>
#include <vector>

#include "runtime/pool.hpp"

namespace winnow {
namespace {

// Few enough for an even end, enough that the counter costs nothing.
constexpr int64_t kBlockRows = 64;

struct PruneJob {
  const winnow_prune_args& args;
  PruneFunction function;
  std::vector<float> scratch;
  std::atomic<int64_t> next{0};

  void work(int thread) {
    float* own = scratch.data() + thread * prune_floats(args.dim);
    for (int64_t first; (first = next.fetch_add(kBlockRows)) < args.slots;) {
      function(args, first, std::min(first + kBlockRows, args.slots), own);
    }
  }
};

}  // namespace

void run_on_rows(const winnow_prune_args& args, PruneFunction function) {
  const int64_t blocks = (args.slots + kBlockRows - 1) / kBlockRows;
  const int threads = static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(args.threads, blocks)));
  PruneJob job{args, function, std::vector<float>(static_cast<size_t>(threads * prune_floats(args.dim)))};
  run_parallel(threads, [](void* context, int thread) { static_cast<PruneJob*>(context)->work(thread); }, &job);
}

}  // namespace winnow
