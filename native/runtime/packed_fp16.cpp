// Attention over packed slots of models in fp16, compiled once per instruction set, which WINNOW_ISA names.
#include "packed/chunk.hpp"
#include "runtime/kernels.hpp"

constexpr winnow::ChunkFunction winnow::packed_fp16::WINNOW_ISA = packed_chunk<winnow::Fp16>;
