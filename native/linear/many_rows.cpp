#include "linear/many_rows.hpp"

#include <algorithm>

#include "runtime/dispatch.hpp"
#include "runtime/kernels.hpp"
#include "runtime/pool.hpp"
#include "runtime/workspace.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// What rows may take that are laid at a time. A weight is read again for those that follow.
constexpr int64_t kMostLaidBytes = int64_t{16} << 20;

// Rows that a thread lays at a time: as many as may share lines.
constexpr int64_t kLaidAtOnce = 16;

// Units of work for each thread, so that they end together, and rows of one, which a part of the weight is laid for.
constexpr int64_t kUnitsOfThread = 4, kFewestRowsOfUnit = 2 * kRowsTogether;

// Rows that meet the weight of a layer at a time, of so many.
int64_t most_together(const ManyRowsLayer& of, int64_t rows) {
  const ManyRowsKernel& kernel = of.kernel;
  const int64_t most = std::min(rows, kernel.most_rows);
  if (!kernel.lay) return most;
  return std::min(most, std::max(kMostLaidBytes / kernel.laid_bytes(of.layer), kFewestRowsOfUnit));
}

// Memory for so many rows as they are laid; none where a kernel takes inputs where they lie.
LaidInputs hold_laid(const ManyRowsLayer& of, int64_t rows, Workspace& workspace) {
  if (!of.kernel.lay) return {};
  const int64_t held = round_up(rows, kRowsTogether);  // a whole number of tiles
  return {workspace.reserve(held * of.kernel.laid_bytes(of.layer)), held, 0};
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
  Meeting(const ManyRowsLayer& of, const LaidInputs& laid) : layer_(of.layer), kernel_(of.kernel), laid_(laid) {}

  void lay(const LinearRows& all, int threads) const {
    if (!kernel_.lay) return;
    run_blocks(threads, all.count, kLaidAtOnce, [&](int, int64_t row, int64_t end) {
      for (; row < end; ++row) kernel_.lay(layer_, all, laid_, row);
    });
  }

  // The outputs [first, last) of rows that are those from `row` on of what was laid.
  void multiply(const LinearRows& rows, int64_t row, int64_t first, int64_t last, char* scratch) const {
    kernel_.multiply(layer_, rows, laid_.from(row), first, last, scratch);
  }

 private:
  const winnow_linear_layer& layer_;
  const ManyRowsKernel& kernel_;
  const LaidInputs laid_;
};

// What a thread does at a time of a layer: all outputs of all rows are a grid of such parts.
struct Units {
  int64_t outputs, rows;        // Of the layer.
  int64_t outputs_of, rows_of;  // Of a unit.

  // Of up to `most` outputs. They are as many as keep all threads busy: there are fewer outputs in one then, at first, and
  // fewer rows where that is not enough.
  Units(int64_t most, int64_t all_outputs, int64_t all_rows, int threads) : outputs(all_outputs), rows(all_rows) {
    const int64_t wanted = kUnitsOfThread * threads;
    outputs_of = std::min(most, round_up(divide_up(outputs, wanted), kOutputsAtOnce));
    const int64_t parts = std::clamp<int64_t>(divide_up(wanted, columns()), 1, divide_up(rows, kFewestRowsOfUnit));
    rows_of = round_up(divide_up(rows, parts), kRowsTogether);
  }

  // The same of fewer rows.
  Units of_rows(int64_t fewer) const {
    Units found = *this;
    found.rows = fewer;
    return found;
  }

  int64_t columns() const { return divide_up(outputs, outputs_of); }

  // Runs body(slot, row, count, first, last) for the outputs [first, last) of `count` rows from `row` on.
  template <class Body>
  void run(int threads, const Body& body) const {
    const int64_t parts = divide_up(rows, rows_of);
    run_blocks(threads, columns() * parts, 1, [&](int slot, int64_t unit, int64_t) {
      const int64_t row = unit % parts * rows_of, first = unit / parts * outputs_of;
      body(slot, row, std::min(rows_of, rows - row), first, std::min(first + outputs_of, outputs));
    });
  }
};

// True where inputs that are laid for one layer serve the other.
bool lay_alike(const ManyRowsLayer& one, const ManyRowsLayer& other) {
  return &one.kernel == &other.kernel && one.layer.bits == other.layer.bits;
}

}  // namespace

LinearRows part_of(const winnow_linear_layer& layer, const LinearRows& all, int64_t first, int64_t count) {
  const int64_t bytes = kElementBytes[layer.dtype];
  return {count, static_cast<const char*>(all.inputs) + first * layer.inputs * bytes,
          static_cast<char*>(all.outputs) + first * layer.outputs * bytes};
}

void multiply_many_rows(const ManyRowsLayer& of, const LinearRows& all, int threads) {
  thread_local Workspace laid, scratch;
  if (of.layer.outputs == 0) return;
  const int64_t most = most_together(of, all.count);
  const Units units(of.kernel.outputs, of.layer.outputs, most, threads);
  const ThreadScratch memory(of.kernel.scratch_bytes(of.layer, units.rows_of, units.outputs_of), threads, scratch);
  const Meeting meeting(of, hold_laid(of, most, laid));
  for (int64_t first = 0; first < all.count; first += most) {
    const LinearRows part = part_of(of.layer, all, first, std::min(most, all.count - first));
    meeting.lay(part, threads);
    units.of_rows(part.count).run(threads, [&](int slot, int64_t row, int64_t count, int64_t output, int64_t last) {
      meeting.multiply(part_of(of.layer, part, row, count), row, output, last, memory.of(slot));
    });
  }
}

void gate_many_rows(const ManyRowsLayer& gate, const ManyRowsLayer& up, const winnow_gate& by, const LinearRows& all,
                    int threads) {
  thread_local Workspace laid_for_gate, laid_for_up, scratch;
  const winnow_linear_layer& layer = up.layer;
  if (layer.outputs == 0) return;
  const int64_t most = std::min(most_together(gate, all.count), most_together(up, all.count));
  // Half as many outputs at a time: as many gates beside them are to stay in the second-level cache.
  const int64_t together = std::min(gate.kernel.outputs, up.kernel.outputs);
  const Units units(std::max(together / 2, kOutputsAtOnce), layer.outputs, most, threads);
  const int64_t outputs_bytes = units.rows_of * units.outputs_of * kElementBytes[layer.dtype];
  const int64_t sums_bytes = std::max(gate.kernel.scratch_bytes(gate.layer, units.rows_of, units.outputs_of),
                                      up.kernel.scratch_bytes(layer, units.rows_of, units.outputs_of));
  const ThreadScratch memory(2 * outputs_bytes + sums_bytes, threads, scratch);
  const LaidInputs laid = hold_laid(gate, most, laid_for_gate);
  const bool alike = lay_alike(gate, up);
  const Meeting to_gates(gate, laid), to_ups(up, alike ? laid : hold_laid(up, most, laid_for_up));
  const auto activate = active_kernels().gate[layer.dtype];
  for (int64_t first = 0; first < all.count; first += most) {
    const LinearRows part = part_of(layer, all, first, std::min(most, all.count - first));
    to_gates.lay(part, threads);
    if (!alike) to_ups.lay(part, threads);
    units.of_rows(part.count).run(threads, [&](int slot, int64_t row, int64_t count, int64_t output, int64_t last) {
      // Rows lie beside each other, and kRowsOfSums of them in the second-level cache, until they are gated.
      char *gates = memory.of(slot), *ups = gates + outputs_bytes, *sums = ups + outputs_bytes;
      const LinearRows to = part_of(layer, part, row, count);
      to_gates.multiply({count, to.inputs, gates, units.outputs_of}, row, output, last, sums);
      to_ups.multiply({count, to.inputs, ups, units.outputs_of}, row, output, last, sums);
      void* outputs = static_cast<char*>(to.outputs) + output * kElementBytes[layer.dtype];
      activate(by, {count, units.outputs_of, gates, ups, outputs, layer.outputs}, 0, last - output);
    });
  }
}

}  // namespace winnow
