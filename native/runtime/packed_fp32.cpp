// Attention over packed slots of models in fp32, compiled once per instruction set, which WINNOW_ISA names.
#include "packed/chunk.hpp"
#include "runtime/kernels.hpp"

constexpr winnow::ChunkFunction winnow::packed_fp32::WINNOW_ISA = packed_chunk<float>;
