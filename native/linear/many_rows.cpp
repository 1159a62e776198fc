#include "linear/many_rows.hpp"

#include <algorithm>

#include "runtime/dispatch.hpp"
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

// Rows that meet the weight of a layer at a time, of so many.
int64_t most_together(const ManyRowsLayer& of, int64_t rows) {
  const ManyRowsKernel& kernel = of.kernel;
  const int64_t most = std::min(rows, kernel.most_rows);
  if (!kernel.round) return most;
  return std::min(most, std::max(kMostRoundedBytes / kernel.rounded_bytes(of.layer), kFewestRowsOfUnit));
}

// Memory for the whole numbers of so many rows; none where a kernel takes inputs as they are.
RoundedInputs hold_rounded(const ManyRowsLayer& of, int64_t rows, Workspace& workspace) {
  if (!of.kernel.round) return {};
  const int64_t held = round_up(rows, kRowsTogether);  // a whole number of tiles
  return {workspace.reserve(held * of.kernel.rounded_bytes(of.layer)), held, 0};
}

// What each thread keeps while it multiplies, in lines of its own.
struct ThreadScratch {
  static constexpr int64_t kLineBytes = 64;

  char* first;
  int64_t bytes;

  ThreadScratch(int64_t needed, int threads, Workspace& workspace) : bytes(round_up(needed, kLineBytes)) {
    first = workspace.reserve(threads * bytes);
  }

  char* of(int slot) const { return first + slot * bytes; }
};

// A layer, and rows that meet its weight at a time.
class Meeting {
 public:
  Meeting(const ManyRowsLayer& of, const RoundedInputs& rounded)
      : layer_(of.layer), kernel_(of.kernel), rounded_(rounded) {}

  void round(const LinearRows& all, int threads) const {
    if (!kernel_.round) return;
    run_blocks(threads, all.count, kRoundedAtOnce, [&](int, int64_t row, int64_t end) {
      for (; row < end; ++row) kernel_.round(layer_, all, rounded_, row);
    });
  }

  // The outputs from `output` on, as many as are done at once, of rows that are those from `row` on of what was rounded.
  void multiply(const LinearRows& rows, int64_t row, int64_t output, char* scratch) const {
    kernel_.multiply(layer_, rows, rounded_.from(row), output, end_of(output), scratch);
  }

  int64_t end_of(int64_t output) const { return std::min(output + kOutputsAtOnce, layer_.outputs); }

 private:
  const winnow_linear_layer& layer_;
  const ManyRowsKernel& kernel_;
  const RoundedInputs rounded_;
};

// Runs body(slot, row, count, output) for units of all outputs of all rows.
template <class Body>
void run_units(int threads, int64_t outputs, int64_t rows, const Body& body) {
  const int64_t groups = divide_up(outputs, kOutputsAtOnce);
  const int64_t parts = std::clamp<int64_t>(divide_up(kUnitsOfThread * threads, groups), 1,
                                            divide_up(rows, kFewestRowsOfUnit));
  const int64_t share = round_up(divide_up(rows, parts), kRowsTogether);
  run_blocks(threads, groups * parts, 1, [&](int slot, int64_t unit, int64_t) {
    const int64_t row = unit % parts * share, count = std::min(share, rows - row);
    if (count > 0) body(slot, row, count, unit / parts * kOutputsAtOnce);
  });
}

// True where one whole number of an input serves both layers.
bool round_alike(const ManyRowsLayer& one, const ManyRowsLayer& other) {
  return &one.kernel == &other.kernel && one.layer.bits == other.layer.bits;
}

}  // namespace

LinearRows part_of(const winnow_linear_layer& layer, const LinearRows& all, int64_t first, int64_t count) {
  const int64_t bytes = kElementBytes[layer.dtype];
  return {count, static_cast<const char*>(all.inputs) + first * layer.inputs * bytes,
          static_cast<char*>(all.outputs) + first * layer.outputs * bytes};
}

void multiply_many_rows(const ManyRowsLayer& of, const LinearRows& all, int threads) {
  thread_local Workspace rounded, scratch;
  if (of.layer.outputs == 0) return;
  const int64_t most = most_together(of, all.count);
  const ThreadScratch memory(of.kernel.scratch_bytes(of.layer, most), threads, scratch);
  const Meeting meeting(of, hold_rounded(of, most, rounded));
  for (int64_t first = 0; first < all.count; first += most) {
    const LinearRows part = part_of(of.layer, all, first, std::min(most, all.count - first));
    meeting.round(part, threads);
    run_units(threads, of.layer.outputs, part.count, [&](int slot, int64_t row, int64_t count, int64_t output) {
      meeting.multiply(part_of(of.layer, part, row, count), row, output, memory.of(slot));
    });
  }
}

void gate_many_rows(const ManyRowsLayer& gate, const ManyRowsLayer& up, const winnow_gate& by, const LinearRows& all,
                    int threads) {
  thread_local Workspace rounded_for_gate, rounded_for_up, scratch;
  const winnow_linear_layer& layer = up.layer;
  if (layer.outputs == 0) return;
  const int64_t most = std::min(most_together(gate, all.count), most_together(up, all.count));
  const int64_t outputs_bytes = most * kOutputsAtOnce * kElementBytes[layer.dtype];
  const int64_t sums_bytes = std::max(gate.kernel.scratch_bytes(gate.layer, most), up.kernel.scratch_bytes(layer, most));
  const ThreadScratch memory(2 * outputs_bytes + sums_bytes, threads, scratch);
  const RoundedInputs rounded = hold_rounded(gate, most, rounded_for_gate);
  const bool alike = round_alike(gate, up);
  const Meeting to_gates(gate, rounded), to_ups(up, alike ? rounded : hold_rounded(up, most, rounded_for_up));
  const auto activate = active_kernels().gate[layer.dtype];
  for (int64_t first = 0; first < all.count; first += most) {
    const LinearRows part = part_of(layer, all, first, std::min(most, all.count - first));
    to_gates.round(part, threads);
    if (!alike) to_ups.round(part, threads);
    run_units(threads, layer.outputs, part.count, [&](int slot, int64_t row, int64_t count, int64_t output) {
      // Rows lie beside each other, and kRowsOfSums of them in the second-level cache, until they are gated.
      char *gates = memory.of(slot), *ups = gates + outputs_bytes, *sums = ups + outputs_bytes;
      const LinearRows to = part_of(layer, part, row, count);
      to_gates.multiply({count, to.inputs, gates, true}, row, output, sums);
      to_ups.multiply({count, to.inputs, ups, true}, row, output, sums);
      void* outputs = static_cast<char*>(to.outputs) + output * kElementBytes[layer.dtype];
      activate(by, {count, kOutputsAtOnce, gates, ups, outputs, layer.outputs}, 0, to_ups.end_of(output) - output);
    });
  }
}

}  // namespace winnow
