#include "vec_avx2.hpp"
// The vector type comes first: the kernels are written in terms of it.
#include "kernels.hpp"

namespace winnow {

const Kernels& avx2_kernels() {
  static constexpr Kernels table = kernel_table("avx2");
  return table;
}

}  // namespace winnow
