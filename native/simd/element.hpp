// Element types as they lie in memory.
#pragma once

#include <cstdint>

namespace winnow {

struct Bf16 {
  uint16_t bits;
};

struct Fp16 {
  uint16_t bits;
};

struct Int8 {
  int8_t number;
};

struct Uint8 {
  uint8_t number;
};

}  // namespace winnow
