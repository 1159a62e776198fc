// All kernels of one instruction set, as a table.
#pragma once

#include "attend/contract.hpp"
#include "prefill/contract.hpp"
#include "prune/contract.hpp"
#include "rotate/contract.hpp"

namespace winnow {

using ReadFunction = int64_t (*)(const void* data, int64_t bytes);

constexpr int kDtypes = 3;  // in the order of winnow_dtype
constexpr int64_t kElementBytes[kDtypes] = {4, 2, 2};

struct Kernels {
  const char* name;
  ChunkFunction dense[kDtypes];
  ChunkFunction packed[kDtypes];
  MergeFunction merge[kDtypes];
  ReadFunction read;
  PruneFunction prune[kDtypes];
  PruneFunction take[kDtypes];
  RotateFunction rotate[kDtypes];
  PrefillFunction prefill[kDtypes];
};

// One of each name that CMakeLists.txt gives to kernels.cpp.
namespace isa {
extern const Kernels portable, avx2, avx512, avx512vnni, avx512bf16;
}

}  // namespace winnow
