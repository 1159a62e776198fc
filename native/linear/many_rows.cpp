#include "linear/many_rows.hpp"

#include <algorithm>
#include <limits>

#include "runtime/kernels.hpp"
#include "runtime/pool.hpp"
#include "runtime/workspace.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// What rows may take that are rounded at a time. A weight is read again for those that follow.
constexpr int64_t kMostRoundedBytes = int64_t{16} << 20;

// Rows that a thread rounds at a time.
constexpr int64_t kRoundedAtOnce = 8;

// Units of work for each thread, so that they end together, and rows of one, which a part of the weight is rounded for.
constexpr int64_t kUnitsOfThread = 4, kFewestRowsOfUnit = 2 * kRowsTogether;

// Rows that are multiplied by a weight at a time; their whole numbers are there where a kernel takes those.
class Passes {
 public:
  Passes(const winnow_linear_layer& layer, const ManyRowsKernel& kernel, int64_t rows, int threads)
      : layer_(layer),
        kernel_(kernel),
        threads_(threads),
        most_(std::min({rows, kernel.most_rows, most_rounded(layer, kernel)})),
        scratch_bytes_(round_up(kernel.scratch_bytes(layer, most_), kLineBytes)) {
    thread_local Workspace rounded, scratch;
    if (kernel.round) {
      const int64_t held = round_up(most_, kRowsTogether);  // a whole number of tiles
      rounded_ = {rounded.reserve(held * kernel.rounded_bytes(layer)), held, 0};
    }
    scratch_ = scratch.reserve(threads * scratch_bytes_);
  }

  int64_t most() const { return most_; }

  void run(const LinearRows& all) {
    if (kernel_.round) round(all);
    const int64_t groups = divide_up(layer_.outputs, kOutputsAtOnce);
    const int64_t parts = std::clamp<int64_t>(divide_up(kUnitsOfThread * threads_, groups), 1,
                                              divide_up(all.count, kFewestRowsOfUnit));
    const int64_t rows = round_up(divide_up(all.count, parts), kRowsTogether);
    run_blocks(threads_, groups * parts, 1, [&](int slot, int64_t unit, int64_t) {
      const int64_t output = unit / parts * kOutputsAtOnce, row = unit % parts * rows;
      const int64_t count = std::min(rows, all.count - row);
      if (count <= 0) return;
      kernel_.multiply(layer_, part_of(layer_, all, row, count), rounded_.from(row), output,
                       std::min(output + kOutputsAtOnce, layer_.outputs), scratch_ + slot * scratch_bytes_);
    });
  }

 private:
  static constexpr int64_t kLineBytes = 64;

  static int64_t most_rounded(const winnow_linear_layer& layer, const ManyRowsKernel& kernel) {
    if (!kernel.round) return std::numeric_limits<int64_t>::max();
    return std::max(kMostRoundedBytes / kernel.rounded_bytes(layer), kFewestRowsOfUnit);
  }

  void round(const LinearRows& all) {
    run_blocks(threads_, all.count, kRoundedAtOnce, [&](int, int64_t row, int64_t end) {
      for (; row < end; ++row) kernel_.round(layer_, all, rounded_, row);
    });
  }

  const winnow_linear_layer& layer_;
  const ManyRowsKernel& kernel_;
  const int threads_;
  const int64_t most_, scratch_bytes_;
  RoundedInputs rounded_{};
  char* scratch_;
};

}  // namespace

LinearRows part_of(const winnow_linear_layer& layer, const LinearRows& all, int64_t first, int64_t count) {
  const int64_t bytes = kElementBytes[layer.dtype];
  return {count, static_cast<const char*>(all.inputs) + first * layer.inputs * bytes,
          static_cast<char*>(all.outputs) + first * layer.outputs * bytes};
}

void multiply_many_rows(const winnow_linear_layer& layer, const ManyRowsKernel& kernel, const LinearRows& all,
                        int threads) {
  if (layer.outputs == 0) return;
  Passes passes(layer, kernel, all.count, threads);
  for (int64_t row = 0; row < all.count; row += passes.most()) {
    passes.run(part_of(layer, all, row, std::min(passes.most(), all.count - row)));
  }
}

}  // namespace winnow
