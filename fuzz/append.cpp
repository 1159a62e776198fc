// libFuzzer target: winnow_append; results are known.
#include "bytes.hpp"
#include "known/append.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes from(data, size);
  const uint64_t seed = static_cast<uint64_t>(from.below(65536));
  // What is wrong is thrown, and the fuzzer takes an exception that nobody catches for a finding.
  check_append(from, seed);
  return 0;
}
