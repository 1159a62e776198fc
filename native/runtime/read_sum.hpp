// A read-only pass over memory: the speed of light for the kernels.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

inline int64_t read_sum(const void* data, int64_t bytes) {
  // Of wider vectors than it has a compiler makes copies in memory.
  constexpr int kLanes = Vec::width;
  typedef uint32_t Numbers __attribute__((vector_size(kLanes * sizeof(uint32_t))));
  constexpr int kSums = 4 * kLine / static_cast<int>(sizeof(Numbers));
  const char* at = static_cast<const char*>(data);
  const char* end = at + bytes;
  Numbers sums[kSums] = {};
  for (; at + 4 * kLine <= end; at += 4 * kLine) {
    for (int line = 0; line < 4; ++line) prefetch(at + line * kLine + kPrefetchBytes);
    unroll<kSums>([&](auto i) {
      Numbers numbers;
      std::memcpy(&numbers, at + i * static_cast<int>(sizeof numbers), sizeof numbers);
      sums[i] += numbers;
    });
  }
  int64_t sum = 0;
  for (const Numbers& part : sums) {
    for (int i = 0; i < kLanes; ++i) sum += part[i];
  }
  for (; at + 4 <= end; at += 4) {
    uint32_t number;
    std::memcpy(&number, at, sizeof number);
    sum += number;
  }
  return sum;
}

}  // namespace
}  // namespace winnow
