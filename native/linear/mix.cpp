#include "linear/mix.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "linear/active.hpp"
#include "linear/stack.hpp"
#include "runtime/pool.hpp"
#include "runtime/workspace.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// A token for each of its experts, those of an expert beside each other, and what the layers make of them.
class Mixing {
 public:
  Mixing(const winnow_mixture& mixture, int64_t tokens, const int64_t* experts, int32_t threads)
      : enter_(mixture.enter),
        leave_(mixture.leave),
        gate_(mixture.gate),
        interleaved_(mixture.interleaved),
        bytes_(kElementBytes[enter_.first.dtype]),
        chosen_(mixture.chosen),
        tokens_(tokens),
        rows_(tokens * mixture.chosen),
        threads_(threads) {
    thread_local Workspace numbers, memory;
    auto* next = reinterpret_cast<int64_t*>(numbers.reserve(rows_ * static_cast<int64_t>(3 * sizeof(int64_t) + sizeof(Run))));
    order_ = next, places_ = next + rows_, layers_ = next + 2 * rows_;
    runs_ = reinterpret_cast<Run*>(next + 3 * rows_);
    sort(experts);
    const int64_t width = enter_.first.inputs, inner = leave_.first.inputs;
    gathered_ = memory.reserve(rows_ * (2 * width + 3 * inner) * bytes_);
    entered_ = gathered_ + rows_ * width * bytes_;
    inner_ = entered_ + 2 * rows_ * inner * bytes_;
    left_ = inner_ + rows_ * inner * bytes_;
  }

  void run(const float* weights, const void* inputs, void* outputs) const {
    gather(static_cast<const char*>(inputs));
    enter();
    leave();
    weigh(weights, static_cast<char*>(outputs));
  }

 private:
  // Rows by their experts, and in the order in which they were given.
  void sort(const int64_t* experts) {
    std::iota(order_, order_ + rows_, 0);
    std::stable_sort(order_, order_ + rows_, [&](int64_t a, int64_t b) { return experts[a] < experts[b]; });
    for (int64_t row = 0; row < rows_; ++row) {
      places_[order_[row]] = row;
      layers_[row] = experts[order_[row]];
    }
    count_ = find_runs(layers_, rows_, runs_);
  }

  void gather(const char* inputs) const {
    const int64_t row_bytes = enter_.first.inputs * bytes_;
    for (int64_t row = 0; row < rows_; ++row) {
      std::memcpy(gathered_ + row * row_bytes, inputs + order_[row] / chosen_ * row_bytes, static_cast<size_t>(row_bytes));
    }
  }

  // The outputs of a layer that enters are those of the gate, and as many that it gates: behind them, or in turn with them.
  void enter() const {
    const winnow_linear_layer& alike = enter_.first;
    const int64_t inner = leave_.first.inputs;
    const auto linear = linear_of(alike);
    const auto gate = active_kernels().gate[alike.dtype];
    const int threads = threads_for(alike, count_ * alike.outputs, threads_);
    run_outputs(threads, runs_, count_, inner, [&](const Run& run, int64_t first, int64_t last) {
      const LinearRows rows = part_of(alike, {rows_, gathered_, entered_}, run.first, run.count);
      const winnow_linear_layer layer = layer_of(enter_, run.layer);
      if (interleaved_) {
        const int64_t begin = 2 * first, end = 2 * last, middle = least(begin + kOutputsAtOnce, end);
        linear(layer, rows, begin, middle);
        if (middle < end) linear(layer, rows, middle, end);
      } else {
        linear(layer, rows, first, last);
        linear(layer, rows, inner + first, inner + last);
      }
      const void* ups = interleaved_ ? nullptr : static_cast<char*>(rows.outputs) + inner * bytes_;
      gate(gate_, {run.count, 2 * inner, rows.outputs, ups, inner_ + run.first * inner * bytes_, inner}, first, last);
    });
  }

  void leave() const {
    const winnow_linear_layer& alike = leave_.first;
    const auto linear = linear_of(alike);
    const int threads = threads_for(alike, count_ * alike.outputs, threads_);
    run_outputs(threads, runs_, count_, alike.outputs, [&](const Run& run, int64_t first, int64_t last) {
      linear(layer_of(leave_, run.layer), part_of(alike, {rows_, inner_, left_}, run.first, run.count), first, last);
    });
  }

  void weigh(const float* weights, char* outputs) const {
    const winnow_linear_layer& alike = leave_.first;
    const auto weigh = active_kernels().weigh[alike.dtype];
    run_blocks(threads_, tokens_, 1, [&](int, int64_t token, int64_t) {
      const int64_t first = token * chosen_;
      weigh({left_, alike.outputs, chosen_, places_ + first, weights + first}, outputs + token * alike.outputs * bytes_);
    });
  }

  const winnow_linear_stack &enter_, &leave_;
  const winnow_gate& gate_;
  const bool interleaved_;
  const int64_t bytes_, chosen_, tokens_, rows_;
  const int32_t threads_;
  int64_t *order_, *places_, *layers_, count_;
  Run* runs_;
  char *gathered_, *entered_, *inner_, *left_;
};

}  // namespace

void mix(const winnow_mixture& mixture, int64_t tokens, const int64_t* experts, const float* weights, const void* inputs,
         void* outputs, int32_t threads) {
  Mixing(mixture, tokens, experts, threads).run(weights, inputs, outputs);
}

}  // namespace winnow
