#include "prefill/job.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/pool.hpp"
#include "runtime/workspace.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Enough for the threads of any machine; as sums of each are held for all tokens, no more than that.
constexpr int64_t kStripes = 128, kFewestStripes = 8;

// What rows may take that are laid at a time: those of one head at least.
constexpr int64_t kMostRowWords = int64_t{16} << 20;

// Heads that are done together.
class Heads {
 public:
  Heads(const winnow_prefill_args& args, const PrefillKernel& kernel)
      : args_(args),
        kernel_(kernel),
        row_words_(kernel.row_words ? kernel.row_words(args) : 0),
        most_(std::clamp<int64_t>(row_words_ ? kMostRowWords / row_words_ : args.heads, 1, args.heads)),
        stripes_(std::max(kFewestStripes, divide_up(kStripes, most_))),
        threads_(std::clamp<int64_t>(args.threads, 1, most_ * stripes_)),
        floats_(round_up(kernel.scratch_floats(args), 16)) {
    rows_ = reinterpret_cast<uint32_t*>(row_memory_.reserve(4 * most_ * row_words_));
    scratch_ = reinterpret_cast<float*>(scratch_memory_.reserve(4 * threads_ * floats_));
    if (args.paid) paid_ = reinterpret_cast<float*>(paid_memory_.reserve(4 * most_ * stripes_ * args.tokens));
  }

  // How many, at most.
  int64_t most() const { return most_; }

  // `count` of them from the `first` on.
  void run(int64_t first, int64_t count) {
    if (row_words_) lay(first, count);
    attend(first, count);
    if (paid_) add_up(first, count);
  }

 private:
  void lay(int64_t first, int64_t count) {
    const int64_t blocks = divide_up(args_.tokens, kernel_.laid_tokens);
    run_blocks(static_cast<int>(threads_), count * blocks, 8, [&](int, int64_t unit, int64_t end) {
      for (; unit < end; ++unit) {
        const int64_t head = unit / blocks;
        kernel_.lay_rows(args_, first + head, unit % blocks, rows_ + head * row_words_);
      }
    });
  }

  void attend(int64_t first, int64_t count) {
    run_blocks(static_cast<int>(threads_), count * stripes_, 1, [&](int slot, int64_t unit, int64_t) {
      const int64_t head = unit / stripes_;
      float* paid = paid_ ? paid_ + unit * args_.tokens : nullptr;
      if (paid) std::memset(paid, 0, bytes_of_tokens());
      kernel_.attend(args_, {first + head, unit % stripes_, stripes_, rows_ + head * row_words_,
                             scratch_ + slot * floats_, paid});
    });
  }

  void add_up(int64_t first, int64_t count) {
    for (int64_t head = 0; head < count; ++head) {
      float* total = args_.paid + (first + head) * args_.tokens;
      std::memset(total, 0, bytes_of_tokens());
      for (int64_t stripe = 0; stripe < stripes_; ++stripe) {
        const float* part = paid_ + (head * stripes_ + stripe) * args_.tokens;
        for (int64_t token = 0; token < args_.tokens; ++token) total[token] += part[token];
      }
    }
  }

  size_t bytes_of_tokens() const { return static_cast<size_t>(args_.tokens) * sizeof(float); }

  const winnow_prefill_args& args_;
  const PrefillKernel& kernel_;
  const int64_t row_words_, most_, stripes_, threads_, floats_;
  Workspace row_memory_, scratch_memory_, paid_memory_;
  uint32_t* rows_;
  float* scratch_;
  float* paid_ = nullptr;
};

}  // namespace

void prefill_rows(const winnow_prefill_args& args, const PrefillKernel& kernel) {
  Heads heads(args, kernel);
  for (int64_t first = 0; first < args.heads; first += heads.most()) {
    heads.run(first, least(heads.most(), args.heads - first));
  }
}

}  // namespace winnow
