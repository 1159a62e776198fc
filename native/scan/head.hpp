// A head of the state scan: where its numbers are.
#pragma once

#include <cstdint>

#include "winnow_native.h"

namespace winnow {
namespace {

// Those of one row, from the first channel of a block on, and so many channels.
template <class T>
struct ScanHead {
  const T *inputs, *steps, *enter, *leave;
  float *states, rate, bias, through;
  int64_t first_output, channels;
};

template <class T>
inline ScanHead<T> scan_head(const winnow_scan_args& args, int64_t row, int64_t head, int64_t channel, int64_t channels) {
  const int64_t group = head / (args.heads / args.groups) * args.state_dim, at = head * args.dim + channel;
  return {static_cast<const T*>(args.inputs) + row * args.input_row + at,
          static_cast<const T*>(args.steps) + row * args.step_row + head,
          static_cast<const T*>(args.enter) + row * args.enter_row + group,
          static_cast<const T*>(args.leave) + row * args.leave_row + group,
          args.states + (row * args.heads * args.dim + at) * args.state_dim,
          args.rates[head],
          args.biases ? args.biases[head] : 0.0f,
          args.through ? args.through[head] : 0.0f,
          row * args.tokens * args.heads * args.dim + at,
          channels};
}

}  // namespace
}  // namespace winnow
