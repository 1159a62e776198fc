// libFuzzer target: winnow_prune, then winnow_take on what it chose.
#include <cstdio>
#include <cstdlib>

#include "instruction_sets.hpp"
#include "pruning.hpp"

namespace {

void expect(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes from(data, size);
  choose_instruction_set(from);
  Arrays arrays(static_cast<uint64_t>(from.below(65536)));
  const bool any = from.below(4) == 0;
  winnow_prune_args args = pruning_of(from, arrays, any);
  make_room(args, arrays);
  expect(winnow_prune(&args) == WINNOW_OK, "winnow_prune refused");

  const int64_t mask_bytes = (args.dim + 7) / 8;
  for (int64_t slot = 0; slot < args.slots; ++slot) {
    int64_t marked = 0;
    for (int64_t i = 0; i < mask_bytes; ++i) marked += __builtin_popcount(args.masks[slot * mask_bytes + i]);
    expect(args.counts[slot] == marked && 0 < marked && marked <= args.dim, "a mask and its count");
    expect(args.share >= 0 || marked == args.most, "the number that is to stay");
  }
  make_room_for_kept(args, arrays, from.coin());
  expect(winnow_take(&args) == WINNOW_OK, "winnow_take refused");
  return 0;
}
