// A read-only pass over memory: the speed of light for the kernels.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd/prefetch.hpp"

namespace winnow {
namespace {

inline int64_t read_sum(const void* data, int64_t bytes) {
  typedef uint32_t Words __attribute__((vector_size(kLine)));
  const char* at = static_cast<const char*>(data);
  const char* end = at + bytes;
  Words sums[4] = {};
  for (; at + 4 * kLine <= end; at += 4 * kLine) {
    for (int i = 0; i < 4; ++i) {
      Words words;
      prefetch(at + i * kLine + kPrefetchBytes);
      std::memcpy(&words, at + i * kLine, sizeof words);
      sums[i] += words;
    }
  }
  const Words total = sums[0] + sums[1] + sums[2] + sums[3];
  int64_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += total[i];
  for (; at + 4 <= end; at += 4) {
    uint32_t word;
    std::memcpy(&word, at, sizeof word);
    sum += word;
  }
  return sum;
}

}  // namespace
}  // namespace winnow
