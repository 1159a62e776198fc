// The queries of a KV head, gathered in blocks that registers hold.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "attend/contract.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Calls body(first, Count<size>) for blocks that cover n queries. The last block may run past n, into the
// padding, where that is cheaper than another pass over the keys (3 as 4, 7 as 8).
template <class Body>
inline void for_query_blocks(int64_t n, const Body& body) {
  int64_t first = 0;
  while (first < n) {
    const int64_t rest = n - first;
    if (Vec::width >= 16 && rest >= 15) {
      body(first, Count<(Vec::width >= 16 ? 16 : 8)>{});
      first += 16;
    } else if (rest >= 7) {
      body(first, Count<8>{});
      first += 8;
    } else if (rest >= 3) {
      body(first, Count<4>{});
      first += 4;
    } else {
      rest == 2 ? body(first, Count<2>{}) : body(first, Count<1>{});
      first += rest;
    }
  }
}

inline const void* query_at(const Shape& shape, const Queries& queries, int64_t query, int64_t element_bytes) {
  const int64_t token = shape.token_of(query), reader = queries.reader_of(token);
  const int64_t element = queries.rows[reader] * queries.row_stride +
                          (token - reader * queries.tokens) * queries.token_stride +
                          shape.head_of(query) * queries.head_stride;
  return static_cast<const char*>(queries.data) + element * element_bytes;
}

// A block of queries in fp32, in the order that score_tile reads, scaled here instead of once per logit.
// Queries of the padding are zero. Keys of type Key meet them: the order of channels is that of its load_pair.
template <int kQueries, class Key, class T>
inline void gather_queries(const Shape& shape, const Queries& queries, int64_t first, float* block) {
  const int64_t dim = shape.key_dim;
  const Vec scaling = broadcast(shape.scaling);
  std::memset(block, 0, static_cast<size_t>(kQueries * shape.query_width) * sizeof(float));
  for (int64_t i = 0; i < kQueries && first + i < shape.queries; ++i) {
    const T* from = static_cast<const T*>(query_at(shape, queries, first + i, sizeof(T)));
    float* to = block + i * Vec::width;
    int64_t d = 0;
    for (; d + 2 * Vec::width <= dim; d += 2 * Vec::width) {
      Vec a, b;
      if constexpr (std::is_same_v<Key, T>) {
        load_pair(from + d, a, b);
      } else {
        a = load(from + d);
        b = load(from + d + Vec::width);
      }
      store(to + d * kQueries, a * scaling);
      store(to + (d + Vec::width) * kQueries, b * scaling);
    }
    for (; d < dim; d += Vec::width) store(to + d * kQueries, load_up_to(from + d, dim - d) * scaling);
  }
}

}  // namespace
}  // namespace winnow
