// Logits of packed integers by dot products in int8, see packed/dots.hpp.
#pragma once

#include <cstring>
#include <type_traits>

#include "attend/contract.hpp"
#include "attend/queries.hpp"
#include "packed/avx512/group_scales.hpp"
#include "packed/avx512/int8.hpp"
#include "packed/format.hpp"
#include "packed/queries.hpp"
#include "packed/scratch.hpp"
#include "simd/avx512/sixteen_rows.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Tokens of a tile: two vectors of logits.
constexpr int kTileVectors = 2;
constexpr int64_t kTileTokens = kTileVectors * Vec::width;

// So many queries in int16.
template <int kQueries>
using QueryInt16 = Int16For<kQueries, 4>;

// Those of them whose sums are in registers together.
template <int kQueries>
constexpr int kMostInBlock = QueryInt16<kQueries>::kSumsAtOnce / kTileVectors;

// Queries in int16, in blocks of a few: every 16 numbers of each query of a block, and then the next ones.
template <int kQueries>
struct Int16Queries {
  static constexpr int kBlock = even_part(kQueries, kMostInBlock<kQueries>);  // but for the last
  const int8_t* int16;
  alignas(64) float scale[kQueryPad];
  alignas(64) int32_t sum[kQueryPad];  // of the int16
};

// One block of them.
template <int kBlock, class Int16>
struct Int16Block {
  static constexpr int64_t kBytes = 2 * kBlock * kBlockBytes;  // of 16 numbers
  const int8_t* int16;
  const float* scale;
  const int32_t* sum;
  const int32_t* field_sums;  // of every 16 numbers, kQueryPad apart
  const float* bias;

  // The queries from `first` on, which meet rows of `dim` numbers. No field sums or biases where they are null.
  template <int kQueries>
  Int16Block(const Int16Queries<kQueries>& queries, int first, int64_t dim, const int32_t* field_sums, const float* bias)
      : int16(queries.int16 + 2 * first * dim),
        scale(queries.scale + first),
        sum(queries.sum + first),
        field_sums(field_sums ? field_sums + first : nullptr),
        bias(bias ? bias + first : nullptr) {}
};

// `query` is in fp32, in the order of scratch. Unless `field_sums` is null, it takes the sums of the int16 of every 16
// channels, [dim / 16, kQueryPad].
template <int kQueries>
inline Int16Queries<kQueries> quantize_queries(const float* query, int64_t dim, int8_t* int16,
                                               int32_t* field_sums = nullptr) {
  static_assert(kQueryPad == Vec::width, "a vector has a lane for every query of a block");
  Int16Queries<kQueries> result;
  result.int16 = int16;
  const auto at = [&](int64_t d, int q) { return load(query + d * kQueries + q * Vec::width); };
  Vec most[kQueryPad];
  __m512i sums[kQueryPad], of_field[kQueryPad];
  unroll<kQueryPad>([&](auto q) {
    most[q] = broadcast(0.0f);
    sums[q] = of_field[q] = _mm512_setzero_si512();
    if (q >= kQueries) return;
    for (int64_t d = 0; d < dim; d += Vec::width) most[q] = larger_magnitude(most[q], at(d, q));
  });
  const Vec largest = row_maxima(most);
  alignas(64) float factors[kQueryPad];
  store(factors, inverse_int16_scale(largest));
  store(result.scale, int16_scale(largest));
  for (int64_t d = 0; d < dim; d += Vec::width) {
    for_even_parts<kQueries, kMostInBlock<kQueries>>([&](auto first, auto size) __attribute__((always_inline)) {
      int8_t* to = int16 + 2 * first * dim + d / kBlockBytes * Int16Block<size, QueryInt16<kQueries>>::kBytes;
      unroll<size>([&](auto i) __attribute__((always_inline)) {
        constexpr int q = first + i;
        of_field[q] = to_int16(at(d, q), broadcast(factors[q]));
        QueryInt16<kQueries>::store_16(to + 2 * i * kBlockBytes, of_field[q]);
        sums[q] = _mm512_add_epi32(sums[q], of_field[q]);
      });
    });
    if (field_sums) _mm512_storeu_si512(field_sums + d / kBlockBytes * kQueryPad, row_sums(of_field));
  }
  _mm512_store_si512(result.sum, row_sums(sums));
  return result;
}

// A load of sixteen rows -> lane t of four[i][kLoad]: bytes 4·i .. 4·i + 3 of row t.
template <class Form, int kLoad>
__attribute__((always_inline)) inline void load_fours(const uint8_t* first, int64_t bytes, const Lift<Form>& lift,
                                                      __m512i (&four)[4][Form::kLoads]) {
  const SixteenRows from(first, bytes);
  __m512i rows[4], lanes[4];
  unroll<4>([&](auto k) __attribute__((always_inline)) {
    rows[k] = lift(from.four<k>([](const char* p) { return Form::template load<kLoad>(p); }), Count<kLoad>{});
  });
  turn_rows(rows, lanes);
  unroll<4>([&](auto i) { four[i][kLoad] = lanes[i]; });
}

// A block of the rows of a tile, prefetching as much from `ahead` on.
template <class Form, class Ahead>
__attribute__((always_inline)) inline void load_tile(const uint8_t* rows, int64_t block, int64_t dim, int64_t bytes,
                                                     const Lift<Form>& lift, Ahead ahead,
                                                     __m512i (&four)[kTileVectors][4][Form::kLoads]) {
  constexpr int kLines = static_cast<int>(kTileTokens * Form::kBytes / kLine);
  unroll<kLines>([&](auto line) { prefetch_busy(ahead + line * kLine); });
  unroll<kTileVectors>([&](auto v) __attribute__((always_inline)) {
    unroll<Form::kLoads>([&](auto load) __attribute__((always_inline)) {
      const uint8_t* from = rows + v * Vec::width * bytes + Form::place(block, load, dim);
      load_fours<Form, decltype(load)::value>(from, bytes, lift, four[v]);
    });
  });
}

// Sums of a block of queries with a tile.
template <int kBlock, class Int16>
using BlockSums = typename Int16::template Sums<kBlock * kTileVectors>;

// Adds the products of the fields kFirst .. kFirst + kCount - 1 of a block; `int16` are of its queries.
template <int kBlock, class Form, int kFirst, int kCount, class Int16>
__attribute__((always_inline)) inline void add_fields(const __m512i (&four)[kTileVectors][4][Form::kLoads],
                                                      const int8_t* int16, BlockSums<kBlock, Int16>& sums) {
  unroll<4 * kCount>([&](auto i) __attribute__((always_inline)) {
    constexpr int field = kFirst + i % kCount, quarter = i / kCount;
    typename Int16::Bytes keys[kTileVectors];
    unroll<kTileVectors>([&](auto v) { keys[v] = typename Int16::Bytes(Form::template field<field>(four[v][quarter])); });
    Int16::template for_parts<kBlock>([&](auto q, auto part) __attribute__((always_inline)) {
      const int8_t* of_query = int16 + field * Int16Block<kBlock, Int16>::kBytes + 2 * q * kBlockBytes;
      const int8_t* next = of_query + quarter * Int16::kStep;
      const __m512i query = Int16::template load_part<decltype(part)::value, kBlockBytes>(next);
      unroll<kTileVectors>([&](auto v) __attribute__((always_inline)) {
        sums.add(Count<q * kTileVectors + v>{}, part, keys[v], query);
      });
    });
  });
}

// logits[q][t] for a tile of tokens and a block of queries. A lane is a token, so that nothing is to be summed over
// lanes. Never inlined: the caller's pointers would take the registers that the loop needs.
template <int kBlock, class Form, class Int16, class Ahead>
__attribute__((noinline)) void score_int8_tile(const Int16Block<kBlock, Int16>& queries, const Lift<Form>& lift,
                                               const uint8_t* rows, int64_t dim, int64_t bytes, Ahead ahead,
                                               float* logits) {
  constexpr int kSums = kBlock * kTileVectors;
  BlockSums<kBlock, Int16> sums;
  unroll<kSums>([&](auto i) { sums.start(i, _mm512_setzero_si512()); });
  const int8_t* int16 = queries.int16;
  const int64_t blocks = dim / (16 * Form::kFields);
  for (int64_t block = 0; block < blocks; ++block) {
    __m512i four[kTileVectors][4][Form::kLoads];
    load_tile<Form>(rows, block, dim, bytes, lift, ahead, four);
    add_fields<kBlock, Form, 0, Form::kFields, Int16>(four, int16, sums);
    int16 += Form::kFields * queries.kBytes;
    ahead += kTileTokens * Form::kBytes;
  }
  unroll<kSums>([&](auto i) {
    const int q = i / kTileVectors;
    const __m512i offset = _mm512_set1_epi32(lift.offset * queries.sum[q]);
    const Vec dots{_mm512_cvtepi32_ps(_mm512_sub_epi32(sums[i], offset))};
    float* to = logits + q * kLogitStride + i % kTileVectors * Vec::width;
    store(to, fma(dots, broadcast(queries.scale[q]), broadcast(queries.bias[q])));
  });
}

// logits[q][t] = query[q] · numbers[t] + bias[q]; writes up to a tile past the last token. `edge` is for the rows of a
// tile.
template <int kQueries, class Form>
inline void score_int8_rows(const Lift<Form>& lift, const float* query, int64_t dim, const float* bias,
                            const uint8_t* rows, int64_t tokens, const char* last, int8_t* int16, void* edge,
                            float* logits) {
  const int64_t bytes = dim / (16 * Form::kFields) * Form::kBytes;
  const auto queries = quantize_queries<kQueries>(query, dim, int16);
  for (int64_t t = 0; t < tokens; t += kTileTokens) {
    const uint8_t* tile = rows + t * bytes;
    const int64_t rest = tokens - t;
    const char* ahead = clamped_ahead_of(tile, last);
    // The rest is copied, since a tile must not read past the end. Nobody uses the logits of what lies behind.
    if (rest < kTileTokens) tile = static_cast<uint8_t*>(std::memcpy(edge, tile, static_cast<size_t>(rest * bytes)));
    for_even_parts<kQueries, kMostInBlock<kQueries>>([&](auto first, auto size) {
      const Int16Block<size, QueryInt16<kQueries>> block(queries, first, dim, nullptr, bias);
      score_int8_tile<size, Form>(block, lift, tile, dim, bytes, ahead, logits + first * kLogitStride + t);
    });
  }
}

// The same for any width of integers.
template <int kQueries>
inline void score_int8_rows(int32_t bits, bool is_signed, const float* query, int64_t dim, const float* bias,
                            const uint8_t* rows, int64_t tokens, const char* last, int8_t* int16, void* edge,
                            float* logits) {
  for_width(bits, [&](auto width) {
    using Form = Numbers<decltype(width)::value>;
    score_int8_rows<kQueries>(Lift<Form>(is_signed), query, dim, bias, rows, tokens, last, int16, edge, logits);
  });
}

// The same for a tile whose channels have scales of groups of `size`, [groups, kTileTokens]: sums end with every
// granule.
template <int kBlock, class Form, class Int16>
__attribute__((noinline)) void score_int8_groups_tile(const Int16Block<kBlock, Int16>& queries, const Lift<Form>& lift,
                                                      const float* scales, int64_t size, const uint8_t* rows,
                                                      int64_t dim, int64_t bytes, const char* ahead, float* logits) {
  constexpr int kSums = kBlock * kTileVectors;
  constexpr int kFields = Form::kFields, kBlocks = kFields == 1 ? 2 : 1;  // of a granule, or of more than one
  const auto logits_of = [&](int i) {
    return logits + i / kTileVectors * kLogitStride + i % kTileVectors * Vec::width;
  };
  unroll<kSums>([&](auto i) { store(logits_of(i), broadcast(0.0f)); });
  const int8_t* int16 = queries.int16;
  for (int64_t d = 0; d < dim; d += 16 * kFields * kBlocks) {
    __m512i four[kBlocks][kTileVectors][4][Form::kLoads];
    unroll<kBlocks>([&](auto b) __attribute__((always_inline)) {
      load_tile<Form>(rows, d / (16 * kFields) + b, dim, bytes, lift, ahead + b * kTileTokens * Form::kBytes, four[b]);
    });
    unroll<kFields * kBlocks / 2>([&](auto granule) __attribute__((always_inline)) {
      BlockSums<kBlock, Int16> sums;
      unroll<kSums>([&](auto i) { sums.start(i, _mm512_setzero_si512()); });
      if constexpr (kFields == 1) {
        add_fields<kBlock, Form, 0, 1, Int16>(four[0], int16, sums);
        add_fields<kBlock, Form, 0, 1, Int16>(four[1], int16 + queries.kBytes, sums);
      } else {
        add_fields<kBlock, Form, 2 * granule, 2, Int16>(four[0], int16, sums);
      }
      const int64_t channel = d + granule * kGranule;
      const int32_t* of_fields = queries.field_sums + channel / 16 * kQueryPad;
      const float* scale = scales + channel / size * kTileTokens;
      unroll<kSums>([&](auto i) {
        const int q = i / kTileVectors;
        const __m512i offset = _mm512_set1_epi32(lift.offset * (of_fields[q] + of_fields[kQueryPad + q]));
        const Vec dots{_mm512_cvtepi32_ps(_mm512_sub_epi32(sums[i], offset))};
        const Vec unit = broadcast(queries.scale[q]) * load(scale + i % kTileVectors * Vec::width);
        store(logits_of(i), fma(dots, unit, load(logits_of(i))));
      });
    });
    int16 += kFields * kBlocks * queries.kBytes;
    ahead += kBlocks * kTileTokens * Form::kBytes;
  }
}

// The same for whole granules of any number of tokens. `memory` is for a tile.
template <int kQueries, class Form, class T>
inline void score_int8_groups(const Groups<T>& groups, const float* query, int64_t dim, const uint8_t* rows,
                              int64_t tokens, const char* last, int8_t* memory, void* edge, float* logits) {
  const int64_t bytes = dim / (16 * Form::kFields) * Form::kBytes;
  const Lift<Form> lift(true);
  int32_t* field_sums = reinterpret_cast<int32_t*>(memory + 2 * kQueries * dim);
  float* scales = reinterpret_cast<float*>(field_sums + kQueryPad * dim / 16);
  const auto queries = quantize_queries<kQueries>(query, dim, memory, field_sums);
  for (int64_t t = 0; t < tokens; t += kTileTokens) {
    const uint8_t* tile = rows + t * bytes;
    const int64_t count = least(kTileTokens, tokens - t);
    const char* ahead = clamped_ahead_of(tile, last);
    if (count < kTileTokens) tile = static_cast<uint8_t*>(std::memcpy(edge, tile, static_cast<size_t>(count * bytes)));
    spread_groups(later(groups, t).scales, groups.count, 0, groups.count, count, scales, kTileTokens);
    for_even_parts<kQueries, kMostInBlock<kQueries>>([&](auto first, auto size) {
      const Int16Block<size, QueryInt16<kQueries>> block(queries, first, dim, field_sums, nullptr);
      score_int8_groups_tile<size, Form>(block, lift, scales, groups.size, tile, dim, bytes, ahead,
                                         logits + first * kLogitStride + t);
    });
  }
}

// True where the products of keys of `count` numbers with int16 fit into 32 bits. On the way there sums may wrap.
inline bool sums_fit(const winnow_rows& rows, int64_t count) {
  if (rows.scaling == WINNOW_CHANNEL_GROUPS) return count % kGranule == 0;  // which end with every granule
  const int64_t most = rows.scaling == WINNOW_PER_SLOT ? 1 << (rows.bits - 1) : (1 << rows.bits) - 1;
  return count * most <= 1 << 16;
}

// True for keys of `dim` channels that meet the queries of a model in T so.
template <class T>
inline bool scores_int8(const winnow_rows& keys, int64_t dim) {
  return !std::is_same_v<T, float> && whole_blocks(keys, dim) && sums_fit(keys, dim);
}

// scratch.logits[q][t] for the queries [first, first + kQueries) and all tokens of a chunk of integers; false where
// the format is another, or the model's numbers are.
template <int kQueries, class T>
inline bool score_int8(const Shape& shape, const Chunk& chunk, const Queries& queries, int64_t first,
                       const Scratch& scratch, const PackedScratch& packed) {
  const winnow_rows& rows = chunk.part->keys;
  if constexpr (!std::is_same_v<T, float>) {
    if (!scores_int8<T>(rows, shape.key_dim)) return false;
    const uint8_t* data = bytes_at(rows.data) + chunk.slot * rows.row_bytes;
    const char* last = reinterpret_cast<const char*>(data) + chunk.tokens * rows.row_bytes - 1;
    int8_t* int16 = reinterpret_cast<int8_t*>(packed.tile);
    float bias[kQueries] = {};
    gather_for<kQueries, float, T>(shape, chunk, queries, first, scratch.query);
    if (rows.scaling == WINNOW_PER_SLOT) {
      score_int8_rows<kQueries>(rows.bits, true, scratch.query, shape.key_dim, bias, data, chunk.tokens, last, int16,
                                      scratch.edge, scratch.logits);
      return true;
    }
    if (rows.scaling == WINNOW_CHANNEL_GROUPS) {
      const Groups<T> groups = groups_of<T>(rows, chunk, shape.key_dim);
      for_width(rows.bits, [&](auto width) {
        score_int8_groups<kQueries, Numbers<decltype(width)::value>>(groups, scratch.query, shape.key_dim, data,
                                                                     chunk.tokens, last, int16, scratch.edge,
                                                                     scratch.logits);
      });
      return true;
    }
    for (int64_t t = 0; t < chunk.tokens; t += kScaleGroup) {
      fold_scales<kQueries, T>(shape, rows, chunk.slot + t, scratch.query, packed.queries, bias);
      score_int8_rows<kQueries>(rows.bits, false, packed.queries, shape.key_dim, bias, data + t * rows.row_bytes,
                                       least(kScaleGroup, chunk.tokens - t), last, int16, scratch.edge,
                                       scratch.logits + t);
    }
    return true;
  }
  return false;
}

}  // namespace
}  // namespace winnow
