// libFuzzer target: winnow_prune, then winnow_take on what it chose.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "bytes.hpp"
#include "winnow_native.h"

namespace {

void expect(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::abort();
}

winnow_prune_args chosen(Bytes& from, Arrays& arrays) {
  winnow_prune_args args{};
  args.dtype = static_cast<int32_t>(from.below(3));
  args.dim = from.coin() ? from.among(1, 140) : 16 * from.among(1, 16);
  args.slots = from.below(300);
  args.row_stride = args.dim + (from.coin() ? from.below(9) : 0);
  args.most = from.among(1, args.dim);
  args.threads = static_cast<int32_t>(from.among(1, 3));
  args.statistic = static_cast<int32_t>(from.below(WINNOW_PRUNED_MOMENTS + 1));
  args.squared = from.coin();
  args.share = from.coin() ? -1.0 : static_cast<double>(from.below(101)) / 100;
  const bool any = from.below(4) == 0;
  const int64_t numbers = args.slots ? (args.slots - 1) * args.row_stride + args.dim : 0;
  args.rows = arrays.numbers(args.dtype, numbers, any);
  if (args.share >= 0 && from.coin()) {
    args.level_count = from.among(1, 6);
    int64_t* levels = arrays.zeros<int64_t>(args.level_count);
    for (int64_t i = 0; i < args.level_count; ++i) levels[i] = from.among(1, args.most);
    levels[args.level_count - 1] = args.most;
    std::sort(levels, levels + args.level_count);
    args.levels = levels;
    int64_t* bounds = arrays.zeros<int64_t>(args.level_count);
    for (int64_t i = 0; i < args.level_count; ++i) bounds[i] = from.among(1, args.dim);
    std::sort(bounds, bounds + args.level_count);
    args.bounds = bounds;
  } else if (args.share >= 0) {
    args.most = args.dim;
  }
  if (from.coin()) {
    const int64_t heads = from.among(1, 4);
    int64_t* head = arrays.zeros<int64_t>(args.slots);
    for (int64_t i = 0; i < args.slots; ++i) head[i] = i % heads;
    args.head = head;
    args.inverse_norms = static_cast<float*>(arrays.numbers(WINNOW_F32, heads * args.dim, any));
  }
  return args;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr const char* isas[] = {"portable", "avx2", "avx512", "avx512vnni", "avx512bf16"};
  Bytes from(data, size);
  winnow_select_isa(isas[from.below(5)]);
  Arrays arrays(static_cast<uint64_t>(from.below(65536)));
  winnow_prune_args args = chosen(from, arrays);
  const int64_t element = args.dtype == WINNOW_F32 ? 4 : 2, mask_bytes = (args.dim + 7) / 8;
  args.masks = arrays.zeros<uint8_t>(args.slots * mask_bytes);
  args.counts = arrays.zeros<int64_t>(args.slots);
  const int64_t statistics = args.statistic == WINNOW_PRUNED_MOMENTS ? 3 : args.statistic == WINNOW_MOMENTS ? 2 : 1;
  args.stats = arrays.zeros<float>(args.slots * statistics);
  expect(winnow_prune(&args) == WINNOW_OK, "winnow_prune refused");

  int64_t* starts = arrays.zeros<int64_t>(2 * args.slots);
  int64_t kept = 0, signs = 0;
  for (int64_t slot = 0; slot < args.slots; ++slot) {
    int64_t marked = 0;
    for (int64_t i = 0; i < mask_bytes; ++i) marked += __builtin_popcount(args.masks[slot * mask_bytes + i]);
    expect(args.counts[slot] == marked && 0 < marked && marked <= args.dim, "a mask and its count");
    expect(args.share >= 0 || marked == args.most, "the number that is to stay");
    starts[2 * slot] = kept;
    starts[2 * slot + 1] = signs;
    kept += marked * element;
    signs += (args.dim - marked + 7) / 8;
  }
  if (args.share >= 0) args.starts = starts;
  args.kept = arrays.zeros<char>(kept);
  if (from.coin()) args.signs = arrays.zeros<uint8_t>(signs);
  expect(winnow_take(&args) == WINNOW_OK, "winnow_take refused");
  return 0;
}
