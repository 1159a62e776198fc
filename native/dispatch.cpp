#include "dispatch.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace winnow {
namespace {

bool machine_runs(const Kernels& kernels) {
#ifdef WINNOW_X86
  if (&kernels == &avx512bf16_kernels()) {
    return machine_runs(avx512vnni_kernels()) && __builtin_cpu_supports("avx512bf16") &&
           __builtin_cpu_supports("avx512vbmi2");
  }
  if (&kernels == &avx512vnni_kernels()) {
    return machine_runs(avx512_kernels()) && __builtin_cpu_supports("avx512vnni");
  }
  if (&kernels == &avx512_kernels()) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt");
  }
  if (&kernels == &avx2_kernels()) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("popcnt");
  }
#endif
  return &kernels == &portable_kernels();
}

// Best first; portable kernels run everywhere, so a search always ends.
const Kernels* find(const char* name) {
  const Kernels* all[] = {
#ifdef WINNOW_X86
      &avx512bf16_kernels(),
      &avx512vnni_kernels(),
      &avx512_kernels(),
      &avx2_kernels(),
#endif
      &portable_kernels(),
  };
  for (const Kernels* kernels : all) {
    if ((!name || std::strcmp(name, kernels->name) == 0) && machine_runs(*kernels)) return kernels;
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
