// The kernels but for packed slots, compiled once per instruction set, which WINNOW_ISA names.
#include "runtime/kernels.hpp"

#include "attend/partials.hpp"
#include "convolution/convolution.hpp"
#include "delta/delta.hpp"
#include "dense/chunk.hpp"
#include "latent/project.hpp"
#include "linear/gate.hpp"
#include "linear/linear.hpp"
#include "linear/weigh.hpp"
#include "norm/norm.hpp"
#include "prefill/prefill.hpp"
#include "prune/prune.hpp"
#include "prune/take.hpp"
#include "rotary/rotary.hpp"
#include "rotate/rotate.hpp"
#include "runtime/read_sum.hpp"
#include "scan/scan.hpp"

namespace winnow {

constexpr Kernels isa::WINNOW_ISA = {{dense_chunk<float>, dense_chunk<Bf16>, dense_chunk<Fp16>},
                                     {merge<float>, merge<Bf16>, merge<Fp16>},
                                     read_sum,
                                     {prune<float>, prune<Bf16>, prune<Fp16>},
                                     {take<float>, take<Bf16>, take<Fp16>},
                                     {rotate<float>, rotate<Bf16>, rotate<Fp16>},
                                     {kPrefill<float>, kPrefill<Bf16>, kPrefill<Fp16>},
                                     {linear<float, float>, linear<Bf16, Bf16>, linear<Fp16, Fp16>},
                                     {linear<float, Int8>, linear<Bf16, Int8>, linear<Fp16, Int8>},
                                     {kLinearFewBits<float>, kLinearFewBits<Bf16>, kLinearFewBits<Fp16>},
                                     kWriteOutInt4,
                                     {gate<float>, gate<Bf16>, gate<Fp16>},
                                     {weigh<float>, weigh<Bf16>, weigh<Fp16>},
                                     {normalize<float>, normalize<Bf16>, normalize<Fp16>},
                                     {rotary<float>, rotary<Bf16>, rotary<Fp16>},
                                     {kDelta<float>, kDelta<Bf16>, kDelta<Fp16>},
                                     {kConvolution<float>, kConvolution<Bf16>, kConvolution<Fp16>},
                                     {kScan<float>, kScan<Bf16>, kScan<Fp16>},
                                     {kLatent<float, float>, kLatent<Bf16, Bf16>, kLatent<Fp16, Fp16>},
                                     {kLatent<float, Int8>, kLatent<Bf16, Int8>, kLatent<Fp16, Int8>}};

}  // namespace winnow
