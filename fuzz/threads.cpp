// Several threads that call the library at once, for a build with the thread sanitizer: attention, pruning and reading
// share one pool of workers, which fall asleep and are woken between the rounds. Then the same once more, and while they
// call, threads are lent as by OpenMP: from there on each call has a team of its own.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "bytes.hpp"
#include "winnow_native.h"

namespace {

constexpr int kCallers = 4, kRounds = 40, kThreads = 3;
constexpr int64_t kHeads = 4, kTokens = 900, kDim = 64, kSlots = 700;

// Inputs that all callers share. Each call is large enough to be divided.
class Work {
 public:
  Work() : arrays_(1) {
    keys_ = numbers(kHeads * kTokens * kDim);
    values_ = numbers(kHeads * kTokens * kDim);
    query_ = numbers(kHeads * kDim);
    expected_ = attended(1);
    chosen_ = pruned(1);
    sum_ = read(1);
  }

  // True if three calls give what they gave on one thread.
  bool agrees() const {
    const std::vector<float> found = attended(kThreads);
    for (size_t i = 0; i < found.size(); ++i) {
      if (!(std::fabs(found[i] - expected_[i]) < 1e-4f)) return false;
    }
    return pruned(kThreads) == chosen_ && read(kThreads) == sum_;
  }

 private:
  const float* numbers(int64_t count) { return static_cast<float*>(arrays_.numbers(WINNOW_F32, count, false)); }

  std::vector<float> attended(int32_t threads) const {
    std::vector<float> output(kHeads * kDim);
    const int64_t bounds[] = {0, 0}, lengths[] = {kTokens};
    winnow_decode_args args{};
    args.rows = args.group_size = args.queries = 1;
    args.heads = kHeads;
    args.key_dim = args.value_dim = kDim;
    args.tail_capacity = kTokens;
    args.threads = threads;
    args.scaling = 0.125f;
    args.part_bounds = bounds;
    args.tail_keys = keys_;
    args.tail_values = values_;
    args.tail_lengths = lengths;
    args.query = query_;
    args.query_row_stride = kHeads * kDim;
    args.query_head_stride = args.query_token_stride = kDim;
    args.output = output.data();
    if (winnow_decode(&args) != WINNOW_OK) output.clear();
    return output;
  }

  std::vector<uint8_t> pruned(int32_t threads) const {
    std::vector<uint8_t> masks(kSlots * kDim / 8);
    std::vector<int64_t> counts(kSlots);
    std::vector<float> stats(kSlots);
    winnow_prune_args args{};
    args.rows = keys_;
    args.slots = kSlots;
    args.dim = args.row_stride = kDim;
    args.most = kDim / 2;
    args.share = -1;
    args.masks = masks.data();
    args.counts = counts.data();
    args.stats = stats.data();
    args.threads = threads;
    if (winnow_prune(&args) != WINNOW_OK) masks.clear();
    return masks;
  }

  int64_t read(int32_t threads) const {
    return winnow_read_sum(keys_, kHeads * kTokens * kDim * static_cast<int64_t>(sizeof(float)), threads);
  }

  Arrays arrays_;
  const float *keys_, *values_, *query_;
  std::vector<float> expected_;
  std::vector<uint8_t> chosen_;
  int64_t sum_;
};

// OpenMP's two functions, of plain threads: the sanitizer knows nothing of how those of OpenMP wait for each other.
std::atomic<int> teams{0};
thread_local int number_in_team = 0;

void run_team(void (*task)(void*), void* data, unsigned threads, unsigned) {
  ++teams;
  std::vector<std::thread> others;
  for (unsigned number = 1; number < threads; ++number) {
    others.emplace_back([=] {
      number_in_team = static_cast<int>(number);
      task(data);
    });
  }
  task(data);
  for (std::thread& other : others) other.join();
}

int own_number() { return number_in_team; }

// Rounds in which a call gave something else than on one thread; `meanwhile` runs beside the callers.
template <class Meanwhile>
int wrong_rounds(const Work& work, const Meanwhile& meanwhile) {
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        // Now and then long enough for the workers to fall asleep.
        if (i % 7 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        wrong += !work.agrees();
      }
    });
  }
  meanwhile();
  for (std::thread& caller : callers) caller.join();
  return wrong;
}

}  // namespace

int main() {
  const Work work;
  const int in_pool = wrong_rounds(work, [] {});
  const int in_teams = wrong_rounds(work, [] { winnow_lend_threads(run_team, own_number); });
  std::printf("%d rounds of %d callers: %d wrong in the pool, %d in %d teams\n", kRounds, kCallers, in_pool, in_teams,
              teams.load());
  return in_pool || in_teams || !teams ? EXIT_FAILURE : EXIT_SUCCESS;
}
