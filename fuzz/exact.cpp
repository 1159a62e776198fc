// Kernels on problems whose results are known, in every instruction set that the machine has; no fuzzer and no Python,
// so that it runs wherever a compiler and an emulator are.
//
//     exact [CASES] [KERNEL]    cases of every kernel, or of one
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "bytes.hpp"
#include "instruction_sets.hpp"
#include "known/append.hpp"
#include "known/compare.hpp"
#include "known/convolution.hpp"
#include "known/decode.hpp"
#include "known/delta.hpp"
#include "known/latent.hpp"
#include "known/linear.hpp"
#include "known/mix.hpp"
#include "known/norm.hpp"
#include "known/prefill.hpp"
#include "known/prune.hpp"
#include "known/rotary.hpp"
#include "known/rotate.hpp"
#include "known/scan.hpp"
#include "known/stack.hpp"
#include "winnow_native.h"

namespace {

constexpr int64_t kBytes = 400;

struct Kernel {
  const char* name;
  void (*check)(Bytes&, uint64_t seed);
};
constexpr Kernel kernels[] = {{"decode", check_decode}, {"shared", check_shared}, {"append", check_append},
                              {"prefill", check_prefill}, {"prune", check_prune}, {"rotate", check_rotate},
                              {"linear", check_linear}, {"stack", check_stack}, {"mix", check_mix}, {"norm", check_norm},
                              {"rotary", check_rotary}, {"gated", check_gated}, {"delta", check_delta},
                              {"convolve", check_convolution}, {"scan", check_scan}, {"latent", check_latent}};

// True if a case passes; its number says all about it.
bool passes(const Kernel& kernel, uint64_t number) {
  Arrays choices(number);
  Bytes from(choices.noise(kBytes), kBytes);
  try {
    kernel.check(from, number);
    return true;
  } catch (const Wrong& wrong) {
    std::printf("%s, %s, case %llu: %s\n", winnow_isa(), kernel.name, static_cast<unsigned long long>(number),
                wrong.what());
    return false;
  }
}

int64_t wrong_cases(const Kernel& kernel, int64_t cases) {
  int64_t wrong = 0;
  for (int64_t number = 0; number < cases; ++number) wrong += !passes(kernel, static_cast<uint64_t>(number));
  std::printf("%s, %s: %lld cases, %lld wrong\n", winnow_isa(), kernel.name, static_cast<long long>(cases),
              static_cast<long long>(wrong));
  std::fflush(stdout);
  return wrong;
}

}  // namespace

int main(int count, char** options) {
  const int64_t cases = count > 1 ? std::atoll(options[1]) : 200;
  const char* only = count > 2 ? options[2] : nullptr;
  int64_t wrong = 0, run = 0;
  for (const char* isa : kInstructionSets) {
    if (winnow_select_isa(isa) != WINNOW_OK) continue;
    for (const Kernel& kernel : kernels) {
      if (only && std::strcmp(only, kernel.name)) continue;
      wrong += wrong_cases(kernel, cases);
      ++run;
    }
  }
  return wrong || !run || cases < 1 ? EXIT_FAILURE : EXIT_SUCCESS;
}
