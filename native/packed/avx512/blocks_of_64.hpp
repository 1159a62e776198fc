// Rows of which 64 numbers are taken at a time, as bytes of a vector.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "simd/unroll.hpp"

namespace winnow {
namespace {

// Numbers of a row that are taken together.
constexpr int64_t kRowNumbers = 64;

inline __m512i every_byte(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }

// Blocks of a row, at most.
constexpr int64_t kMostBlocks = 4;

// body(Count<blocks>) for rows of `dim` numbers.
template <class Body>
__attribute__((always_inline)) inline void for_blocks(int64_t dim, const Body& body) {
  switch (dim / kRowNumbers) {
    case 1: return body(Count<1>{});
    case 2: return body(Count<2>{});
    case 3: return body(Count<3>{});
    default: return body(Count<kMostBlocks>{});
  }
}

}  // namespace
}  // namespace winnow
