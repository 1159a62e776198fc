#include "prefill/job.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

#include "runtime/pool.hpp"
#include "sizes.hpp"

namespace winnow {

// Enough for the threads of any machine; as sums of each are held for all tokens, no more than that.
constexpr int64_t kStripes = 128, kFewestStripes = 8;

void prefill_rows(const winnow_prefill_args& args, PrefillFunction function) {
  const int64_t stripes = std::max(kFewestStripes, divide_up(kStripes, args.heads));
  const int64_t units = args.heads * stripes, floats = round_up(PrefillSizes(args).all(), 16);
  const int64_t threads = std::max<int64_t>(1, std::min<int64_t>(args.threads, units));
  const std::unique_ptr<float[]> scratch(new float[static_cast<size_t>(threads * floats)]);
  const size_t paid_floats = args.paid ? static_cast<size_t>(units * args.tokens) : 0;
  const std::unique_ptr<float[]> paid(paid_floats ? new float[paid_floats]() : nullptr);
  run_blocks(static_cast<int>(threads), units, 1, [&](int slot, int64_t unit, int64_t) {
    float* here = paid ? paid.get() + unit * args.tokens : nullptr;
    function(args, unit / stripes, unit % stripes, stripes, scratch.get() + slot * floats, here);
  });
  if (!paid) return;
  for (int64_t head = 0; head < args.heads; ++head) {
    float* total = args.paid + head * args.tokens;
    std::memset(total, 0, static_cast<size_t>(args.tokens) * sizeof(float));
    for (int64_t stripe = 0; stripe < stripes; ++stripe) {
      const float* part = paid.get() + (head * stripes + stripe) * args.tokens;
      for (int64_t token = 0; token < args.tokens; ++token) total[token] += part[token];
    }
  }
}

}  // namespace winnow
