// What memory bounds: numbers are read as they lie, once. Compiled once per instruction set, which WINNOW_ISA names, and apart
// from kernels.cpp, which takes a compiler five times as long.
#include "dense/chunk.hpp"
#include "linear/linear.hpp"
#include "runtime/kernels.hpp"
#include "runtime/read_sum.hpp"

namespace winnow {

constexpr StreamKernels streams::WINNOW_ISA = {{dense_chunk<float>, dense_chunk<Bf16>, dense_chunk<Fp16>},
                                               {linear<float, float>, linear<Bf16, Bf16>, linear<Fp16, Fp16>},
                                               {linear<float, Int8>, linear<Bf16, Int8>, linear<Fp16, Int8>},
                                               {nullptr, kLinearInt4, nullptr},
                                               kWriteOutInt4,
                                               read_sum};

}  // namespace winnow
