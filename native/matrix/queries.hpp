// Queries as panels: channel after channel, with a panel's queries side by side.
#pragma once

#include <cstdint>

#include "attend/contract.hpp"
#include "attend/queries.hpp"
#include "matrix/sizes.hpp"
#include "packed/queries.hpp"
#include "packed/scratch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// body(first, Count<vectors>) for all panels: of two vectors of queries, or one where no more are left.
template <class Body>
inline void for_panels(const Shape& shape, const Body& body) {
  int64_t first = 0;
  for (; shape.queries - first > Vec::width; first += 2 * Vec::width) body(first, Count<2>{});
  if (first < shape.queries) body(first, Count<1>{});
}

// A vector of queries in the order of gather_queries -> its lanes of a panel of `lanes` queries.
inline void turn_block(const float* block, int64_t dim, int64_t lanes, float* panel) {
  for (int64_t d = 0; d < dim; ++d) {
    const float* from = block + d / Vec::width * Vec::width * Vec::width + d % Vec::width;
    for (int64_t i = 0; i < Vec::width; ++i) panel[d * lanes + i] = from[i * Vec::width];
  }
}

// body(first, place, lanes) for every vector of queries: where it lies in its panel, and how wide that is.
template <class Body>
inline void for_query_vectors(const Shape& shape, float* panels, int64_t dim, const Body& body) {
  for_panels(shape, [&](int64_t first, auto vectors) {
    constexpr int64_t kLanes = decltype(vectors)::value * Vec::width;
    for (int64_t lane = 0; lane < kLanes; lane += Vec::width) body(first + lane, panels + first * dim + lane, kLanes);
  });
}

// Logits are scaled when they are there: products are of queries as they are.
inline Shape unscaled(Shape shape) {
  shape.scaling = 1.0f;
  return shape;
}

// Queries that meet dense keys.
template <class T>
inline void make_panels(const Shape& shape, const Queries& queries, const Scratch& scratch, const MatrixScratch& matrix) {
  for_query_vectors(shape, matrix.panels, shape.key_dim, [&](int64_t first, float* panel, int64_t lanes) {
    gather_queries<Vec::width, float, T>(unscaled(shape), queries, first, scratch.query);
    turn_block(scratch.query, shape.key_dim, lanes, panel);
    store(matrix.biases + first, broadcast(0.0f));
  });
}

// Queries that meet packed keys: in their coordinates and without the channels that they lack.
template <class T>
inline void make_panels(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                        const PackedScratch& packed, const MatrixScratch& matrix) {
  const winnow_rows& rows = chunk.part->keys;
  const bool some_channels = lacks_channels(rows);
  const int64_t dim = some_channels ? rows.kept : shape.key_dim;
  for_query_vectors(shape, matrix.panels, dim, [&](int64_t first, float* panel, int64_t lanes) {
    if (some_channels) {
      const Asked asked =
          pick_channels<Vec::width>(unscaled(shape), chunk, queries, first, reinterpret_cast<T*>(packed.queries));
      gather_queries<Vec::width, float, T>(asked.shape, asked.queries, 0, scratch.query);
    } else {
      gather_for<Vec::width, float, T>(unscaled(shape), chunk, queries, first, scratch.query);
    }
    turn_block(scratch.query, dim, lanes, panel);
    float bias[Vec::width] = {};
    if (rows.means) score_mean<Vec::width, T>(shape, chunk, queries, first, bias);
    store(matrix.biases + first, load(bias));
  });
}

}  // namespace
}  // namespace winnow
