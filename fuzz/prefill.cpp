// libFuzzer target: winnow_prefill on prompts; results are known.
#include "bytes.hpp"
#include "known/prefill.hpp"
#include "winnow_native.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr const char* isas[] = {"portable", "avx2", "avx512", "avx512vnni", "avx512bf16"};
  Bytes from(data, size);
  // One that the machine lacks leaves the last one in use.
  winnow_select_isa(isas[from.below(5)]);
  const uint64_t seed = static_cast<uint64_t>(from.below(65536));
  // What is wrong is thrown, and the fuzzer takes an exception that nobody catches for a finding.
  check_prefill(from, seed);
  return 0;
}
