// The promise of a linear function, whatever the instruction set.
#pragma once

#include <cstdint>

#include "rounded/sizes.hpp"
#include "sizes.hpp"
#include "winnow_native.h"

namespace winnow {

struct LinearRows {
  int64_t count;
  const void* inputs;
  void* outputs;
  int64_t alone = 0;  // not 0: a row has so many outputs, those from the first that a function does
};

// Does the outputs first to last - 1 of all rows: kOutputsAtOnce from a multiple of it on, or fewer up to the end.
using LinearFunction = void (*)(const winnow_linear_layer&, const LinearRows&, int64_t first, int64_t last);

// Linear functions for weights of 4, 5 and 6 bits, and how many outputs lie beside each other in them. Null: there are none.
struct FewBitsFunctions {
  LinearFunction of_bits[3];
  int64_t outputs;
};

// Rows of a gate's outputs, and of those that it gates; rows of both are `stride` apart.
struct GatedRows {
  int64_t count, stride;
  const void *gates, *ups;  // null: each is behind the output of the gate, instead of the next one of that
  void* outputs;            // may be `ups`
  int64_t outputs_stride;
};

// Gates the numbers first to last - 1 of all rows.
using GateFunction = void (*)(const winnow_gate&, const GatedRows&, int64_t first, int64_t last);

// Rows of `width` numbers, and a weight for each that counts, by their places.
struct WeighedRows {
  const void* data;
  int64_t width, count;
  const int64_t* places;
  const float* weights;
};

// Writes their sum.
using WeighFunction = void (*)(const WeighedRows&, void* to);

// Outputs of a weight that are written out, first to last - 1, to [inputs, last - first].
struct WrittenOut {
  int64_t first, last;
  void* to;
};

// Writes the groups of inputs first to last - 1, of WINNOW_SCALE_GROUP each.
using WriteOutFunction = void (*)(const winnow_linear_layer&, const WrittenOut&, int64_t first, int64_t last);

// Rows of inputs as a kernel takes them, in memory for `held` rows that it orders as it likes: those from `first` on.
struct LaidInputs {
  char* memory;
  int64_t held, first;

  LaidInputs from(int64_t row) const { return {memory, held, first + row}; }
};

// A linear layer of many rows. All are null where there is none.
struct ManyRowsKernel {
  // Lays a row of inputs as it is multiplied, and the bytes that one takes; null where they are multiplied where they lie.
  void (*lay)(const winnow_linear_layer&, const LinearRows&, const LaidInputs&, int64_t row);
  int64_t (*laid_bytes)(const winnow_linear_layer&);
  // Does the outputs first to last - 1 of rows that were laid unless `lay` is null: from a multiple of kOutputsAtOnce on, to
  // another or to the end, and `outputs` at the most.
  void (*multiply)(const winnow_linear_layer&, const LinearRows&, const LaidInputs&, int64_t first, int64_t last,
                   char* scratch);
  // Bytes of `scratch` for so many rows and outputs.
  int64_t (*scratch_bytes)(const winnow_linear_layer&, int64_t rows, int64_t outputs);
  int64_t inputs;     // There is a multiple of it.
  int64_t most_rows;  // At a time.
  int64_t outputs = WINNOW_LINEAR_OUTPUTS;  // At a time, a multiple of it.
  int64_t fewest_rows = 33;  // From so many on it is faster than those for few.
};

namespace {

// Outputs that a thread does at a time: those of a block of few bits.
constexpr int64_t kOutputsAtOnce = WINNOW_LINEAR_OUTPUTS;

// Rows whose outputs are summed up together: whole tiles, whatever the instruction set.
constexpr int64_t kRowsTogether = 96;

// Rows that a kernel multiplies at a time if their sums stay in the second-level cache meanwhile.
constexpr int64_t kRowsOfSums = 512;

// Where a row has its outputs from the first that a function does.
template <class T>
inline T* outputs_of(const winnow_linear_layer& layer, const LinearRows& all, int64_t row, int64_t first) {
  return static_cast<T*>(all.outputs) + (all.alone ? row * all.alone : row * layer.outputs + first);
}

constexpr int64_t rounded_blocks(const winnow_linear_layer& layer) { return divide_up(layer.inputs, kRoundedTogether); }

}  // namespace
}  // namespace winnow
