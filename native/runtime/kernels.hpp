// All kernels of one instruction set, as tables.
#pragma once

#include "attend/contract.hpp"
#include "convolution/contract.hpp"
#include "delta/contract.hpp"
#include "latent/contract.hpp"
#include "linear/contract.hpp"
#include "norm/contract.hpp"
#include "prefill/contract.hpp"
#include "prune/contract.hpp"
#include "rotary/contract.hpp"
#include "rotate/contract.hpp"
#include "scan/contract.hpp"

namespace winnow {

using ReadFunction = int64_t (*)(const void* data, int64_t bytes);
using MultiplyFunction = int64_t (*)(int64_t products, int32_t bits, int32_t dtype);

constexpr int kDtypes = 3;  // in the order of winnow_dtype
constexpr int64_t kElementBytes[kDtypes] = {4, 2, 2};

struct Kernels {
  ChunkFunction dense[kDtypes];
  MergeFunction merge[kDtypes];
  ReadFunction read;
  PruneFunction prune[kDtypes];
  PruneFunction take[kDtypes];
  RotateFunction rotate[kDtypes];
  PrefillKernel prefill[kDtypes];
  LinearFunction linear[kDtypes], linear_int8[kDtypes];
  FewBitsFunctions linear_few_bits[kDtypes];
  WriteOutFunction write_out_int4;       // null: there is none
  GateFunction gate[kDtypes];
  WeighFunction weigh[kDtypes];
  NormFunction normalize[kDtypes];
  RotaryFunction rotary[kDtypes];
  DeltaKernel delta[kDtypes];
  ConvolutionKernel convolution[kDtypes];
  ScanKernel scan[kDtypes];
  LatentKernel latent[kDtypes], latent_int8[kDtypes];
};

// Apart from the others, as compilers take the longest for them. All dtypes together, as they share most functions.
struct PackedKernels {
  ChunkFunction chunk[kDtypes];
  ChunkFunction latent[kDtypes];
};

// True where products of matrices are faster for a chunk than functions that read it where it lies.
using ServesFunction = bool (*)(const Shape&, const Chunk&);

// Of linear layers whose weight is in the dtype of the inputs, in 8 bits, and in 4 to 6; null where there is none.
struct RowsKernels {
  ManyRowsKernel plain[kDtypes], int8[kDtypes], few_bits[kDtypes];

  const ManyRowsKernel& of(const winnow_linear_layer& layer) const {
    return (layer.bits < 8 ? few_bits : layer.bits == 8 ? int8 : plain)[layer.dtype];
  }
};

struct MatrixKernels {
  ChunkFunction dense[kDtypes];
  ChunkFunction packed[kDtypes];
  ServesFunction serves[kDtypes];
  const PrefillKernel* prefill[kDtypes];  // null: there is none that is faster
  ChunkFunction latent[kDtypes];
  RowsKernels many_rows, several_rows;
  FewBitsFunctions few_bits[kDtypes];  // null: there is none that is faster
  MultiplyFunction multiply;
};

// One of each name that CMakeLists.txt gives to kernels.cpp.
namespace isa {
extern const Kernels portable, avx2, avx512, zen4, zen5;
}

// The same for packed.cpp.
namespace packed {
extern const PackedKernels portable, avx2, avx512, avx512vnni, avx512bf16, zen4, zen5;
}

// The same for matrix.cpp.
namespace matrix {
extern const MatrixKernels portable, avx2, avx512, avx512vnni, zen4, zen5, amx;
}

}  // namespace winnow
