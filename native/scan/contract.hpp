// The promise of a function of the state scan, whatever the instruction set.
#pragma once

#include <cstdint>

#include "sizes.hpp"
#include "winnow_native.h"

namespace winnow {

struct ScanKernel {
  // Does the blocks of channels first to last - 1, counted over all heads and rows: channels of a head are independent.
  void (*run)(const winnow_scan_args&, int64_t first, int64_t last);
  int64_t numbers;  // of a block's states, at most
};

namespace {

// Channels of which every instruction set sums up whole vectors, and lanes that every vector fills.
constexpr int64_t kScanLanes = 16;

// Channels of a block of so many numbers.
constexpr int64_t scan_channels(int64_t numbers, int64_t state_dim) {
  return numbers / round_up(state_dim, kScanLanes) / kScanLanes * kScanLanes;
}

constexpr int64_t scan_blocks(const ScanKernel& kernel, const winnow_scan_args& args) {
  return args.rows * args.heads * divide_up(args.dim, scan_channels(kernel.numbers, args.state_dim));
}

}  // namespace
}  // namespace winnow
