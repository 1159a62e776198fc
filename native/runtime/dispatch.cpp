#include "runtime/dispatch.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace winnow {
namespace {

// The best kernels that this machine runs, or null if it runs none of that name.
const Kernels* find(const char* name) {
#ifdef WINNOW_X86
  const bool basics =
      __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
  const bool avx2 = basics && __builtin_cpu_supports("avx2");
  const bool avx512 = basics && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool avx512vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  const bool avx512bf16 =
      avx512vnni && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi2");
#endif
  const struct {
    const Kernels& kernels;
    bool runs;
  } best_first[] = {
#ifdef WINNOW_X86
      {isa::avx512bf16, avx512bf16},
      {isa::avx512vnni, avx512vnni},
      {isa::avx512, avx512},
      {isa::avx2, avx2},
#endif
      {isa::portable, true},
  };
  for (const auto& each : best_first) {
    if (each.runs && (!name || std::strcmp(name, each.kernels.name) == 0)) return &each.kernels;
  }
  return nullptr;
}

const Kernels* initial() {
  const char* name = std::getenv("WINNOW_ISA");
  const Kernels* named = name && *name ? find(name) : nullptr;
  return named ? named : find(nullptr);
}

std::atomic<const Kernels*>& active() {
  static std::atomic<const Kernels*> kernels{initial()};
  return kernels;
}

}  // namespace

const Kernels& active_kernels() { return *active().load(std::memory_order_acquire); }

bool select_kernels(const char* name) {
  const Kernels* kernels = find(name);
  if (kernels) active().store(kernels, std::memory_order_release);
  return kernels != nullptr;
}

}  // namespace winnow
