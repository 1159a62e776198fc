// Logits of packed integers by dot products in int8, see packed/dots.hpp.
#pragma once

#include <cstring>
#include <type_traits>

#include "attend/contract.hpp"
#include "attend/queries.hpp"
#include "packed/avx512/int8.hpp"
#include "packed/format.hpp"
#include "packed/queries.hpp"
#include "packed/scratch.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Tokens of a tile: two vectors of logits.
constexpr int kTileVectors = 2;
constexpr int64_t kTileTokens = kTileVectors * Vec::width;

// A block of queries in int16: of every 16 numbers, the high and the low halves of every query.
template <int kQueries>
struct Int16Queries {
  static constexpr int kBlock = kQueries < 4 ? kQueries : 4;  // have their sums in registers together
  static constexpr int64_t kBytes = 2 * kQueries * kBlockBytes;  // of 16 numbers
  int8_t* halves;
  Vec scale[kQueries];
  int32_t sum[kQueries];  // of the int16
};

// `query` is in fp32, in the order of scratch.
template <int kQueries>
inline Int16Queries<kQueries> quantize_queries(const float* query, int64_t dim, int8_t* halves) {
  Int16Queries<kQueries> result;
  result.halves = halves;
  unroll<kQueries>([&](auto q) {
    const auto at = [&](int64_t d) { return load(query + d * kQueries + q * Vec::width); };
    Vec most = broadcast(0.0f);
    for (int64_t d = 0; d < dim; d += Vec::width) most = larger_magnitude(most, at(d));
    const Vec largest = broadcast(lane_max(most)), factor = inverse_int16_scale(largest);
    __m512i sum = _mm512_setzero_si512();
    for (int64_t d = 0; d < dim; d += Vec::width) {
      const __m512i int16 = to_int16(at(d), factor);
      int8_t* to = halves + 2 * (d * kQueries + q * kBlockBytes);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to), high_half(int16));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + kBlockBytes), low_half(int16));
      sum = _mm512_add_epi32(sum, int16);
    }
    result.scale[q] = int16_scale(largest);
    result.sum[q] = _mm512_reduce_add_epi32(sum);
  });
  return result;
}

// Blocks of sixteen rows -> lane t of four[i]: bytes 4·i .. 4·i + 3 of row t.
template <class Form>
__attribute__((always_inline)) inline void load_fours(const uint8_t* rows, int64_t bytes, __m512i (&four)[4]) {
  __m512i row[4];
  unroll<4>([&](auto i) { row[i] = Form::lift(load_blocks(rows + i * bytes, 4 * bytes)); });
  const __m512i a = _mm512_unpacklo_epi32(row[0], row[1]), b = _mm512_unpacklo_epi32(row[2], row[3]);
  const __m512i c = _mm512_unpackhi_epi32(row[0], row[1]), d = _mm512_unpackhi_epi32(row[2], row[3]);
  four[0] = _mm512_unpacklo_epi64(a, b);
  four[1] = _mm512_unpackhi_epi64(a, b);
  four[2] = _mm512_unpacklo_epi64(c, d);
  four[3] = _mm512_unpackhi_epi64(c, d);
}

// logits[q][t] for a tile of tokens and a block of queries, from `first` on. A lane is a token, so that nothing is to
// be summed over lanes. Never inlined: the caller's pointers would take the registers that the loop needs.
template <int kQueries, class Form>
__attribute__((noinline)) void score_int8_tile(const Int16Queries<kQueries>& queries, int first, const float* bias,
                                               const uint8_t* rows, int64_t bytes, const char* ahead, float* logits) {
  constexpr int kBlock = Int16Queries<kQueries>::kBlock, kSums = kBlock * kTileVectors;
  __m512i high[kSums], low[kSums];
  unroll<kSums>([&](auto i) { high[i] = low[i] = _mm512_setzero_si512(); });
  const int8_t* halves = queries.halves + 2 * first * kBlockBytes;
  const uint8_t* end = rows + bytes;
  for (const uint8_t* from = rows; from < end; from += kBlockBytes) {
    __m512i four[kTileVectors][4];
    unroll<kTileVectors>([&](auto v) {
      unroll<4>([&](auto i) { prefetch_numbers(ahead + (v * 4 + i) * kLine); });
      load_fours<Form>(from + v * Vec::width * bytes, bytes, four[v]);
    });
    unroll<4 * Form::kFields>([&](auto i) {
      constexpr int field = i % Form::kFields, quarter = i / Form::kFields;
      __m512i keys[kTileVectors];
      unroll<kTileVectors>([&](auto v) { keys[v] = Form::template field<field>(four[v][quarter]); });
      unroll<kBlock>([&](auto q) {
        const int8_t* at = halves + field * queries.kBytes + 2 * q * kBlockBytes + 4 * quarter;
        const __m512i query_high = broadcast_four(at), query_low = broadcast_four(at + kBlockBytes);
        unroll<kTileVectors>([&](auto v) {
          constexpr int sum = q * kTileVectors + v;
          high[sum] = add_products(high[sum], keys[v], query_high);
          low[sum] = add_products(low[sum], keys[v], query_low);
        });
      });
    });
    halves += Form::kFields * queries.kBytes;
    ahead += kTileTokens * kBlockBytes;
  }
  unroll<kSums>([&](auto i) {
    const int q = first + i / kTileVectors;
    const __m512i offset = _mm512_set1_epi32(Form::kOffset * queries.sum[q]);
    const Vec dots{_mm512_cvtepi32_ps(_mm512_sub_epi32(join(high[i], low[i]), offset))};
    float* to = logits + q * kLogitStride + i % kTileVectors * Vec::width;
    store(to, fma(dots, queries.scale[q], broadcast(bias[q])));
  });
}

// logits[q][t] = query[q] · numbers[t] + bias[q]; writes up to a tile past the last token. `edge` is for the rows of a
// tile.
template <int kQueries, class Form>
inline void score_int8_rows(const float* query, int64_t dim, const float* bias, const uint8_t* rows, int64_t tokens,
                            const char* last, int8_t* halves, void* edge, float* logits) {
  const int64_t bytes = dim / Form::kFields;
  const auto queries = quantize_queries<kQueries>(query, dim, halves);
  for (int64_t t = 0; t < tokens; t += kTileTokens) {
    const uint8_t* tile = rows + t * bytes;
    const int64_t rest = tokens - t;
    const char* ahead = clamped_ahead_of(tile, last);
    // The rest is copied, since a tile must not read past the end. Nobody uses the logits of what lies behind.
    if (rest < kTileTokens) tile = static_cast<uint8_t*>(std::memcpy(edge, tile, static_cast<size_t>(rest * bytes)));
    for (int first = 0; first < kQueries; first += queries.kBlock) {
      score_int8_tile<kQueries, Form>(queries, first, bias, tile, bytes, ahead, logits + t);
    }
  }
}

// The same for any width of integers.
template <int kQueries, bool kSigned>
inline void score_int8_rows(int32_t bits, const float* query, int64_t dim, const float* bias, const uint8_t* rows,
                            int64_t tokens, const char* last, int8_t* halves, void* edge, float* logits) {
  for_width(bits, [&](auto width) {
    score_int8_rows<kQueries, Numbers<decltype(width)::value, kSigned>>(query, dim, bias, rows, tokens, last, halves,
                                                                        edge, logits);
  });
}

// True where the products of keys of `count` numbers with int16 fit into 32 bits. On the way there sums may wrap.
inline bool sums_fit(const winnow_rows& rows, int64_t count) {
  const int64_t most = rows.scaling == WINNOW_PER_SLOT ? 1 << (rows.bits - 1) : (1 << rows.bits) - 1;
  return count * most <= 1 << 16;
}

// scratch.logits[q][t] for the queries [first, first + kQueries) and all tokens of a chunk of integers; false where
// the format is another, or the model's numbers are.
template <int kQueries, class T>
inline bool score_int8(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                       const Scratch& scratch, const PackedScratch& packed) {
  const winnow_rows& rows = chunk.part->keys;
  if constexpr (!std::is_same_v<T, float>) {
    if (!whole_blocks(rows, shape.key_dim) || !sums_fit(rows, shape.key_dim)) return false;
    const uint8_t* data = bytes_at(rows.data) + chunk.slot * rows.row_bytes;
    const char* last = reinterpret_cast<const char*>(data) + chunk.tokens * rows.row_bytes - 1;
    int8_t* halves = reinterpret_cast<int8_t*>(packed.tile);
    float bias[kQueries] = {};
    gather_for<kQueries, float, T>(shape, chunk, queries, first, scratch.query);
    if (rows.scaling == WINNOW_PER_SLOT) {
      score_int8_rows<kQueries, true>(rows.bits, scratch.query, shape.key_dim, bias, data, chunk.tokens, last, halves,
                                      scratch.edge, scratch.logits);
      return true;
    }
    for (int64_t t = 0; t < chunk.tokens; t += kScaleGroup) {
      fold_scales<kQueries, T>(shape, rows, chunk.slot + t, scratch.query, packed.queries, bias);
      score_int8_rows<kQueries, false>(rows.bits, packed.queries, shape.key_dim, bias, data + t * rows.row_bytes,
                                       least(kScaleGroup, chunk.tokens - t), last, halves, scratch.edge,
                                       scratch.logits + t);
    }
    return true;
  }
  return false;
}

}  // namespace
}  // namespace winnow
