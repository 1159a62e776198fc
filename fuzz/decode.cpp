// libFuzzer target: winnow_decode on problems that are right in all sizes.
#include <cstdio>
#include <cstdlib>

#include "decode.hpp"
#include "instruction_sets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes from(data, size);
  choose_instruction_set(from);
  const uint64_t seed = static_cast<uint64_t>(from.below(65536));
  DecodeProblem problem(from, seed);
  if (winnow_decode(&problem.args) != WINNOW_OK) {
    std::fprintf(stderr, "winnow_decode refused a problem that is right\n");
    std::abort();
  }
  return 0;
}
