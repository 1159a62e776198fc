// The 16-bit element types as they lie in memory.
#pragma once

#include <cstdint>

namespace winnow {

struct Bf16 {
  uint16_t bits;
};

struct Fp16 {
  uint16_t bits;
};

}  // namespace winnow
