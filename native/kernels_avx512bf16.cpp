#include "vec_avx512.hpp"
// The vector type comes first: the kernels are written in terms of it.
#include "kernels.hpp"

namespace winnow {

const Kernels& avx512bf16_kernels() {
  static constexpr Kernels table = kernel_table("avx512bf16");
  return table;
}

}  // namespace winnow
