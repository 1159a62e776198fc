#include "vec_portable.hpp"
// The vector type comes first: the kernels are written in terms of it.
#include "kernels.hpp"

namespace winnow {

const Kernels& portable_kernels() {
  static constexpr Kernels table = kernel_table("portable");
  return table;
}

}  // namespace winnow
