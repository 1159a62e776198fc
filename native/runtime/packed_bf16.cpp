// Attention over packed slots of models in bf16, compiled once per instruction set, which WINNOW_ISA names.
#include "packed/chunk.hpp"
#include "runtime/kernels.hpp"

constexpr winnow::ChunkFunction winnow::packed_bf16::WINNOW_ISA = packed_chunk<winnow::Bf16>;
