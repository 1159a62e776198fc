// All kernels of one instruction set, as a table. Include after a vec_*.hpp.
#pragma once

#include "contract.hpp"
#include "dense_chunk.hpp"
#include "merge.hpp"
#include "packed_chunk.hpp"
#include "prune.hpp"
#include "read_sum.hpp"

namespace winnow {
namespace {

constexpr Kernels kernel_table(const char* name) {
  return {name,
          {dense_chunk<float>, dense_chunk<Bf16>, dense_chunk<Fp16>},
          {packed_chunk<float>, packed_chunk<Bf16>, packed_chunk<Fp16>},
          {merge<float>, merge<Bf16>, merge<Fp16>},
          read_sum,
          {prune<float>, prune<Bf16>, prune<Fp16>},
          {take<float>, take<Bf16>, take<Fp16>}};
}

}  // namespace
}  // namespace winnow
