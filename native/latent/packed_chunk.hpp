// The chunk function of packed latents: as integers where both parts are, in fp32 where they are anything else.
#pragma once

#include <cstdint>

#include "attend/contract.hpp"
#include "latent/chunk.hpp"
#include "latent/integers.hpp"
#include "latent/scratch.hpp"
#include "matrix/rows.hpp"
#include "packed/scratch.hpp"
#include "packed/values.hpp"
#include "simd/hadamard.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Sums of the numbers of packed latents -> those of the latents that they stand for, in the order of Partial.
template <class T>
inline void finish_latent_sums(const Shape& shape, const Chunk& chunk, const Partial& out) {
  const winnow_rows& rows = chunk.part->keys;
  const int64_t dim = shape.value_dim;
  const T *spreads = static_cast<const T*>(rows.spreads), *means = static_cast<const T*>(rows.means);
  for (int64_t q = 0; q < shape.queries; ++q) {
    float* sums = out.acc + q * shape.value_width;
    if (rows.rotated) transform_row(sums, dim, Vec::width);
    const Vec total = broadcast(out.sum[q]);
    for (int64_t d = 0; d < dim; d += Vec::width) {
      Vec sum = load(sums + d);
      if (spreads) sum = sum * load_up_to(spreads + d, dim - d);
      if (means) sum = fma(total, load_up_to(means + d, dim - d), sum);
      store(sums + d, sum);
    }
    order_sums<1, T>(shape, sums);
  }
}

// A packed chunk in fp32.
template <class T>
inline void attend_unpacked(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                            const Partial& out) {
  const LatentScratch latent = latent_scratch(shape, scratch.matrix);
  const PackedScratch packed = packed_scratch(shape, scratch.packed);
  make_latent_panels<T>(shape, chunk, queries, scratch, latent);
  PackedRows<T, true> latents(chunk.part->keys, chunk, shape.value_dim, packed.reader, packed.row_floats);
  PackedRows<T, false> rotated(chunk.part->values, chunk, rotated_dim(shape), packed.tile, packed.row_floats);
  attend_latent_blocks(shape, chunk, latent, latents, rotated, out);
}

template <class T>
void latent_packed_chunk(const Shape& shape, const Chunk& chunk, const Queries& queries, const Scratch& scratch,
                         const Partial& out) {
  if (!attend_integers<T>(shape, chunk, queries, scratch, out)) attend_unpacked<T>(shape, chunk, queries, scratch, out);
  finish_latent_sums<T>(shape, chunk, out);
}

}  // namespace
}  // namespace winnow
