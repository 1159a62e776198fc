// Products of matrices, compiled once per instruction set, which WINNOW_ISA names.
#include "matrix/chunk.hpp"
#include "runtime/kernels.hpp"

#ifdef __AMX_BF16__
#include "matrix/amx/chunk.hpp"
#endif

namespace winnow {
namespace {

#ifdef __AMX_BF16__
constexpr ChunkFunction kDenseBf16 = tiles_dense_chunk, kPackedBf16 = tiles_packed_chunk;
constexpr ServesFunction kServesBf16 = tiles_serve;
#else
constexpr ChunkFunction kDenseBf16 = matrix_dense_chunk<Bf16>, kPackedBf16 = matrix_packed_chunk<Bf16>;
constexpr ServesFunction kServesBf16 = matrix_serves<Bf16>;
#endif

}  // namespace

constexpr MatrixKernels matrix::WINNOW_ISA = {
    {matrix_dense_chunk<float>, kDenseBf16, matrix_dense_chunk<Fp16>},
    {matrix_packed_chunk<float>, kPackedBf16, matrix_packed_chunk<Fp16>},
    {matrix_serves<float>, kServesBf16, matrix_serves<Fp16>}};

}  // namespace winnow
