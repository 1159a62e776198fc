// Attention over packed slots, compiled once per instruction set, which WINNOW_ISA names.
#include "latent/packed_chunk.hpp"
#include "packed/chunk.hpp"
#include "runtime/kernels.hpp"

namespace winnow {

constexpr PackedKernels packed::WINNOW_ISA = {
    {packed_chunk<float>, packed_chunk<Bf16>, packed_chunk<Fp16>},
    {latent_packed_chunk<float>, latent_packed_chunk<Bf16>, latent_packed_chunk<Fp16>}};

}  // namespace winnow
