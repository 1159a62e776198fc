// A read-only pass over memory: the speed of light for the kernels.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd/prefetch.hpp"

namespace winnow {
namespace {

inline int64_t read_sum(const void* data, int64_t bytes) {
  typedef uint32_t Numbers __attribute__((vector_size(kLine)));
  const char* at = static_cast<const char*>(data);
  const char* end = at + bytes;
  Numbers sums[4] = {};
  for (; at + 4 * kLine <= end; at += 4 * kLine) {
    for (int i = 0; i < 4; ++i) {
      Numbers numbers;
      prefetch(at + i * kLine + kPrefetchBytes);
      std::memcpy(&numbers, at + i * kLine, sizeof numbers);
      sums[i] += numbers;
    }
  }
  const Numbers total = sums[0] + sums[1] + sums[2] + sums[3];
  int64_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += total[i];
  for (; at + 4 <= end; at += 4) {
    uint32_t number;
    std::memcpy(&number, at, sizeof number);
    sum += number;
  }
  return sum;
}

}  // namespace
}  // namespace winnow
