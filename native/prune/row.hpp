// A row that is pruned, as the machine works on it.
#pragma once

#include <cstdint>
#include <cstring>

#include "prune/contract.hpp"
#include "simd/bits.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// A float's bits, wherever they lie.
typedef int32_t __attribute__((may_alias)) FloatBits;

// A row in scratch, padded to whole words of its mask.
struct PruneRow {
  int64_t dim;
  int64_t words;
  uint64_t* kept;
  uint64_t* gone;
  float* numbers;  // zero behind dim
  float* sizes;    // behind dim the bits of -1, which are below those of any size

  PruneRow(int64_t dim_, float* scratch) : dim(dim_), words(mask_words(dim_)) {
    kept = reinterpret_cast<uint64_t*>(scratch);
    gone = kept + words;
    numbers = scratch + 4 * words;
    sizes = numbers + width();
  }
  int64_t width() const { return words * 64; }
  const FloatBits* bits() const { return reinterpret_cast<const FloatBits*>(sizes); }
  uint64_t channels(int64_t word) const { return first_bits(dim - 64 * word); }
};

// The numbers of a row as fp32, zero behind its end.
template <class T>
inline void widen_row(const T* from, const PruneRow& row) {
  int64_t j = 0;
  for (; j < row.dim; j += Vec::width) store(row.numbers + j, load_up_to(from + j, row.dim - j));
  for (; j < row.width(); j += Vec::width) store(row.numbers + j, broadcast(0.0f));
}

// |number|, or |number / inverse norm|.
inline void measure(const float* inverse_norms, const PruneRow& row) {
  if (inverse_norms) {
    for (int64_t j = 0; j < row.dim; j += Vec::width) {
      store(row.sizes + j, load(row.numbers + j) / load_up_to(inverse_norms + j, row.dim - j));
    }
  } else {
    std::memcpy(row.sizes, row.numbers, static_cast<size_t>(row.dim) * sizeof(float));
  }
  FloatBits* bits = reinterpret_cast<FloatBits*>(row.sizes);
  for (int64_t j = 0; j < row.dim; ++j) bits[j] &= 0x7fffffff;
  std::memset(row.sizes + row.dim, 0xff, static_cast<size_t>(row.width() - row.dim) * sizeof(float));
}

// Channels whose bits in memory at `numbers` are above, as a mask word.
inline uint64_t word_above(const float* numbers, int32_t bits) {
  uint64_t word = 0;
  for (int64_t j = 0; j < 64; j += Vec::width) word |= uint64_t{lanes_above(numbers + j, bits)} << j;
  return word;
}

}  // namespace
}  // namespace winnow
