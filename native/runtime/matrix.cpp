// Products of matrices, compiled once per instruction set, which WINNOW_ISA names.
#include "latent/chunk.hpp"
#include "linear/choice.hpp"
#include "matrix/chunk.hpp"
#include "runtime/kernels.hpp"
#include "runtime/multiply.hpp"

#if defined(__AVX2__) && !defined(WINNOW_ZEN) && !defined(WINNOW_PORTABLE)
#include "prefill/avx/rows.hpp"
#define WINNOW_PANELS
#endif
#ifdef __AMX_INT8__
#include "matrix/amx/choice.hpp"
#include "prefill/amx/panel.hpp"
#endif

namespace winnow {

constexpr MatrixKernels matrix::WINNOW_ISA = {
#ifdef __AMX_INT8__
    {matrix_dense_chunk<float>, dense_in_tiles<Bf16>, dense_in_tiles<Fp16>},
    {matrix_packed_chunk<float>, packed_in_tiles<Bf16>, packed_in_tiles<Fp16>},
    {matrix_serves<float>, serves_in_tiles<Bf16>, serves_in_tiles<Fp16>},
    {&kPrefillInPanels<float>, &kPrefillInTiles, &kPrefillInPanels<Fp16>},
#else
    {matrix_dense_chunk<float>, matrix_dense_chunk<Bf16>, matrix_dense_chunk<Fp16>},
    {matrix_packed_chunk<float>, matrix_packed_chunk<Bf16>, matrix_packed_chunk<Fp16>},
    {matrix_serves<float>, matrix_serves<Bf16>, matrix_serves<Fp16>},
#ifdef WINNOW_PANELS
    {&kPrefillInPanels<float>, &kPrefillInPanels<Bf16>, &kPrefillInPanels<Fp16>},
#else
    {nullptr, nullptr, nullptr},
#endif
#endif
    {latent_dense_chunk<float>, latent_dense_chunk<Bf16>, latent_dense_chunk<Fp16>},
    {{kManyRows<float>, kManyRows<Bf16>, kManyRows<Fp16>},
     {kManyRowsInt8<float>, kManyRowsInt8<Bf16>, kManyRowsInt8<Fp16>},
     {kManyRowsFewBits<float>, kManyRowsFewBits<Bf16>, kManyRowsFewBits<Fp16>}},
    {{kSeveralRows<float>, kSeveralRows<Bf16>, kSeveralRows<Fp16>},
     {kSeveralRowsInt8<float>, kSeveralRowsInt8<Bf16>, kSeveralRowsInt8<Fp16>},
     {kSeveralRowsFewBits<float>, kSeveralRowsFewBits<Bf16>, kSeveralRowsFewBits<Fp16>}},
    {kFewBitsInTiles<float>, kFewBitsInTiles<Bf16>, kFewBitsInTiles<Fp16>},
    multiply};

}  // namespace winnow
