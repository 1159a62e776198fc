// Chunk functions of latents that all query heads share: a block of tokens is read once and meets all queries, first as keys,
// beside the tokens' rotated channels, and then as what is summed up.
#pragma once

#include <cstdint>
#include <cstring>

#include "attend/contract.hpp"
#include "attend/partials.hpp"
#include "attend/queries.hpp"
#include "attend/weights.hpp"
#include "latent/pairs.hpp"
#include "latent/queries.hpp"
#include "latent/scratch.hpp"
#include "matrix/products.hpp"
#include "matrix/queries.hpp"
#include "matrix/rows.hpp"
#include "matrix/softmax.hpp"
#include "packed/queries.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// body(first, latents, rotated, lanes) for every vector of queries: where the two parts of its panel begin, and how wide that
// is.
template <class Body>
inline void for_latent_panels(const Shape& shape, const LatentScratch& latent, const Body& body) {
  for_query_vectors(shape, latent.panels, shape.key_dim, [&](int64_t first, float* panel, int64_t lanes) {
    body(first, panel, panel + shape.value_dim * lanes, lanes);
  });
}

// Queries as panels, in the coordinates of a packed part where the chunk is of one.
template <class T>
inline void make_latent_panels(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                               const LatentScratch& latent) {
  const int64_t dim = shape.value_dim;
  const Shape of_all = unscaled(shape), of_latents = of_channels(of_all, dim);
  const winnow_part* part = chunk.part;
  for_latent_panels(shape, latent, [&](int64_t first, float* latents, float* rotated, int64_t lanes) {
    if (part) {
      gather_for<Vec::width, float, T>(of_latents, chunk, queries, first, scratch.query);
    } else {
      gather_queries<Vec::width, T, T>(of_latents, queries, first, scratch.query);
    }
    turn_block(scratch.query, dim, lanes, latents);
    gather_rotated<Vec::width, T>(of_all, part, queries, first, scratch.query);
    turn_block(scratch.query, rotated_dim(shape), lanes, rotated);
    float bias[Vec::width] = {};
    if (part && part->keys.means) score_mean<Vec::width, T>(of_latents, chunk, queries, first, bias);
    store(latent.biases + first, load(bias) * broadcast(shape.scaling));
  });
}

// Rows behind the last, up to a whole group, which are multiplied as well.
inline void clear_absent(float* rows, int64_t dim, int64_t count) {
  const int64_t absent = round_up(count, kTokenGroup) - count;
  std::memset(rows + count * dim, 0, static_cast<size_t>(absent * dim) * sizeof(float));
}

// How many tokens of a chunk the queries of a vector see.
inline Vec seen_by(const Shape& shape, const Chunk& chunk, int64_t first) {
  alignas(64) float seen[Vec::width];
  for (int64_t i = 0; i < Vec::width; ++i) {
    const bool is_query = first + i < shape.queries;
    seen[i] = is_query ? static_cast<float>(visible_tokens(shape, chunk, first + i)) : 0.0f;
  }
  return load(seen);
}

// The tokens [t, t + count) of a chunk, which a block holds, and a panel of kVectors vectors of queries from `first` on.
template <int kVectors>
inline void attend_latent_panel(const Shape& shape, const Chunk& chunk, const LatentScratch& latent, int64_t first, int64_t t,
                                int64_t count, const Partial& out) {
  constexpr int64_t kLanes = kVectors * Vec::width;
  const int64_t dim = shape.value_dim;
  const float* panel = latent.panels + first * shape.key_dim;
  score_panel<kVectors>(panel, latent.latents, dim, count, latent.logits);
  score_panel<kVectors>(panel + dim * kLanes, latent.rotated, rotated_dim(shape), count, latent.others);
  const Cap cap(shape);
  for (int64_t lane = 0; lane < kLanes; lane += Vec::width) {
    float *logits = latent.logits + lane, *others = latent.others + lane;
    const Vec bias = load(latent.biases + first + lane), hidden = broadcast(kUnseenLogit);
    const Vec seen = seen_by(shape, chunk, first + lane) - broadcast(static_cast<float>(t));
    const auto logit_of = [&](int64_t i) {
      const Vec rotated = fma(load(others + i * kLanes), broadcast(latent.rotated_scales[i]), bias);
      const Vec logit = cap(fma(load(logits + i * kLanes), broadcast(latent.latent_scales[i]), rotated));
      return if_less(broadcast(static_cast<float>(i)), seen, logit, hidden);
    };
    softmax_lanes(count, logit_of, latent.sum_scales, logits, kLanes, out.max + first + lane, out.sum + first + lane,
                  latent.factors + lane);
  }
  weigh_panel(latent.logits, kLanes, least(kLanes, shape.queries - first), latent.factors, latent.latents, dim, count,
              out.acc + first * shape.value_width, shape.value_width);
}

// scales[t] *= the scaling of logits, for `count` tokens.
inline void take_scaling(float scaling, int64_t count, float* scales) {
  for (int64_t t = 0; t < count; t += Vec::width) store(scales + t, broadcast(scaling) * load(scales + t));
}

// A chunk whose queries lie in panels.
template <class Latents, class Rotated>
inline void attend_latent_blocks(const Shape& shape, const Chunk& chunk, const LatentScratch& latent, Latents& latents,
                                 Rotated& rotated, const Partial& out) {
  clear(shape, out);
  for (int64_t t = 0; t < chunk.tokens; t += kBlockTokens) {
    const int64_t count = least(kBlockTokens, chunk.tokens - t);
    latents.read(count, latent.latents, latent.sum_scales);
    rotated.read(count, latent.rotated, latent.rotated_scales);
    std::memcpy(latent.latent_scales, latent.sum_scales, static_cast<size_t>(kBlockTokens) * sizeof(float));
    take_scaling(shape.scaling, count, latent.latent_scales);
    take_scaling(shape.scaling, count, latent.rotated_scales);
    clear_absent(latent.latents, shape.value_dim, count);
    clear_absent(latent.rotated, rotated_dim(shape), count);
    for_panels(shape, [&](int64_t first, auto vectors) {
      attend_latent_panel<decltype(vectors)::value>(shape, chunk, latent, first, t, count, out);
    });
  }
}

template <class T>
void latent_dense_chunk(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                        const Partial& out) {
  if (latents_in_pairs<T>(shape, chunk, queries, scratch, out)) return;
  const LatentScratch latent = latent_scratch(shape, scratch.matrix);
  make_latent_panels<T>(shape, chunk, queries, scratch, latent);
  DenseRows<T, true> latents(chunk.keys, shape.value_dim);
  DenseRows<T, false> rotated(chunk.values, rotated_dim(shape));
  attend_latent_blocks(shape, chunk, latent, latents, rotated, out);
}

}  // namespace
}  // namespace winnow
