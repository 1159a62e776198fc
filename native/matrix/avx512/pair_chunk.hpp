// The chunk function of dense slots in bf16 that many queries meet, where a product takes pairs of channels as they are.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "attend/contract.hpp"
#include "attend/queries.hpp"
#include "matrix/chunk.hpp"
#include "matrix/queries.hpp"
#include "matrix/rows.hpp"
#include "matrix/sizes.hpp"
#include "simd/avx512/pairs.hpp"
#include "simd/element.hpp"
#include "simd/prefetch.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Numbers of 32 bits that are two channels in bf16.
struct PairProducts {
  static Vec add(Vec sum, Vec key, Vec query) {
    return {Bf16Pairs::add(sum.v, _mm512_castps_si512(key.v), _mm512_castps_si512(query.v))};
  }
};

// Rows of such numbers, as they are.
class PairRows {
 public:
  PairRows(const void* rows, int64_t dim) : at_(static_cast<const char*>(rows)), pairs_(dim / 2) {}

  int64_t dim() const { return pairs_; }

  void read(int64_t count, float* out, float* scales) {
    const int64_t bytes = count * pairs_ * static_cast<int64_t>(sizeof(float));
    for (int64_t t = 0; t < count; t += Vec::width) store(scales + t, broadcast(1.0f));
    for (int64_t byte = 0; byte < bytes; byte += kLine) prefetch(at_ + kPrefetchBytes + byte);
    std::memcpy(out, at_, static_cast<size_t>(bytes));
    at_ += bytes;
  }

 private:
  const char* at_;
  int64_t pairs_;
};

// Queries that meet them; those of the padding are zero.
inline void make_pair_panels(const Shape& shape, const Queries& queries, const MatrixScratch& matrix) {
  const int64_t pairs = shape.key_dim / 2;
  for_query_vectors(shape, matrix.panels, pairs, [&](int64_t first, float* panel, int64_t lanes) {
    for (int64_t pair = 0; pair < pairs; ++pair) store(panel + pair * lanes, broadcast(0.0f));
    for (int64_t i = 0; i < Vec::width && first + i < shape.queries; ++i) {
      const char* from = static_cast<const char*>(query_at(shape, queries, first + i, sizeof(Bf16)));
      for (int64_t pair = 0; pair < pairs; ++pair, from += sizeof(float)) {
        std::memcpy(panel + pair * lanes + i, from, sizeof(float));
      }
    }
    store(matrix.biases + first, broadcast(0.0f));
  });
}

inline void matrix_pair_chunk(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                              const Partial& out) {
  if (shape.key_dim % 2) return matrix_dense_chunk<Bf16>(shape, chunk, queries, scratch, out);
  const MatrixScratch matrix = matrix_scratch(shape, scratch.matrix);
  make_pair_panels(shape, queries, matrix);
  PairRows keys(chunk.keys, shape.key_dim);
  DenseRows<Bf16, true> values(chunk.values, shape.value_dim);
  attend_blocks<PairProducts>(shape, matrix, chunk.tokens, keys, values, out);
}

}  // namespace
}  // namespace winnow
