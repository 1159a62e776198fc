// libFuzzer target: winnow_decode on problems that are right in all sizes.
#include <cstdio>
#include <cstdlib>

#include "decode.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr const char* isas[] = {"portable", "avx2", "avx512", "avx512vnni", "avx512bf16", "amx"};
  Bytes from(data, size);
  // One that the machine lacks leaves the last one in use.
  winnow_select_isa(isas[from.below(6)]);
  const uint64_t seed = static_cast<uint64_t>(from.below(65536));
  DecodeProblem problem(from, seed);
  if (winnow_decode(&problem.args) != WINNOW_OK) {
    std::fprintf(stderr, "winnow_decode refused a problem that is right\n");
    std::abort();
  }
  return 0;
}
