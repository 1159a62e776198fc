// Attention over packed slots, compiled once per instruction set, which WINNOW_ISA names.
#include "packed/chunk.hpp"
#include "runtime/kernels.hpp"

namespace winnow {

constexpr PackedKernels packed::WINNOW_ISA = {{packed_chunk<float>, packed_chunk<Bf16>, packed_chunk<Fp16>}};

}  // namespace winnow
