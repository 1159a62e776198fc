// libFuzzer target: winnow_prefill on prompts; results are known.
#include "bytes.hpp"
#include "instruction_sets.hpp"
#include "known/prefill.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes from(data, size);
  choose_instruction_set(from);
  const uint64_t seed = static_cast<uint64_t>(from.below(65536));
  // What is wrong is thrown, and the fuzzer takes an exception that nobody catches for a finding.
  check_prefill(from, seed);
  return 0;
}
