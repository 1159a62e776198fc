// The instruction sets of the library, by name.
#pragma once

#include "bytes.hpp"
#include "winnow_native.h"

constexpr const char* kInstructionSets[] = {"portable", "avx2", "avx512", "avx512vnni", "avx512bf16", "zen4", "zen5", "amx"};

// Takes one of them into use; one that the machine lacks leaves the last one there.
inline void choose_instruction_set(Bytes& from) {
  winnow_select_isa(kInstructionSets[from.below(static_cast<int64_t>(sizeof kInstructionSets / sizeof *kInstructionSets))]);
}
