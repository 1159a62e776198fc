// libFuzzer target: winnow_decode on rows that share a prefix, met by many queries as matrices; results are known.
#include "bytes.hpp"
#include "instruction_sets.hpp"
#include "known/decode.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes from(data, size);
  choose_instruction_set(from);
  const uint64_t seed = static_cast<uint64_t>(from.below(65536));
  // What is wrong is thrown, and the fuzzer takes an exception that nobody catches for a finding.
  check_shared(from, seed);
  return 0;
}
