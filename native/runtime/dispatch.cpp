#include "runtime/dispatch.hpp"

#include <atomic>
#include <cstdlib>
#include <cstring>

#if defined(WINNOW_AMX) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace winnow {
namespace {

#ifdef WINNOW_AMX
// True if the processor multiplies tiles of bf16 and of bytes, and the operating system gives this process, which asks
// for it, room for their state.
bool has_tiles() {
#ifdef __linux__
  constexpr long kAskForState = 0x1023, kTileData = 18;
  return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
         __builtin_cpu_supports("amx-int8") && syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
#else
  return false;
#endif
}
#endif

// The one of a name, or the best for this machine; null if it runs none of that name, or none was built.
const InstructionSet* find(const char* name) {
#ifdef __x86_64__
  // Of each set, and so of those before it, whether that was built or not.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
                    __builtin_cpu_supports("popcnt");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool avx512vnni = avx512 && __builtin_cpu_supports("avx512vnni");
  [[maybe_unused]] const bool avx512bf16 = avx512vnni && __builtin_cpu_supports("avx512bf16") &&
                                           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2");
#endif
  static const struct {
    InstructionSet isa;
    bool runs, suits = true;
  } best_first[] = {
#ifdef WINNOW_AMX
      {{"amx", isa::avx512, packed::avx512bf16, matrix::amx}, avx512bf16 && has_tiles()},
#endif
#ifdef WINNOW_ZEN4
      {{"zen4", isa::zen4, packed::zen4, matrix::zen4}, avx512bf16, __builtin_cpu_is("amdfam19h") != 0},
#endif
#ifdef WINNOW_ZEN5
      {{"zen5", isa::zen5, packed::zen5, matrix::zen5}, avx512bf16, __builtin_cpu_is("amd") != 0},
#endif
#ifdef WINNOW_AVX512BF16
      {{"avx512bf16", isa::avx512, packed::avx512bf16, matrix::avx512vnni}, avx512bf16},
#endif
#ifdef WINNOW_AVX512VNNI
      {{"avx512vnni", isa::avx512, packed::avx512vnni, matrix::avx512vnni}, avx512vnni},
#endif
#ifdef WINNOW_AVX512
      {{"avx512", isa::avx512, packed::avx512, matrix::avx512}, avx512},
#endif
#ifdef WINNOW_AVX2
      {{"avx2", isa::avx2, packed::avx2, matrix::avx2}, avx2},
#endif
      {{"portable", isa::portable, packed::portable, matrix::portable}, true},
  };
  for (const auto& each : best_first) {
    if (each.runs && (name ? std::strcmp(name, each.isa.name) == 0 : each.suits)) return &each.isa;
  }
  return nullptr;
}

const InstructionSet* initial() {
  const char* name = std::getenv("WINNOW_ISA");
  const InstructionSet* named = name && *name ? find(name) : nullptr;
  return named ? named : find(nullptr);
}

std::atomic<const InstructionSet*>& active() {
  static std::atomic<const InstructionSet*> isa{initial()};
  return isa;
}

}  // namespace

const InstructionSet& active_isa() { return *active().load(std::memory_order_acquire); }

bool select_isa(const char* name) {
  const InstructionSet* isa = find(name);
  if (isa) active().store(isa, std::memory_order_release);
  return isa != nullptr;
}

}  // namespace winnow
