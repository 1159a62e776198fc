// Queries of heads -> those of latents, and sums of latents -> outputs of heads.
#pragma once

#include <cstring>
#include <type_traits>

#include "attend/contract.hpp"
#include "attend/queries.hpp"
#include "dense/scores.hpp"
#include "dense/weighted_sum.hpp"
#include "latent/contract.hpp"
#include "simd/element.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Sizes for the rows of a head's matrices, which lie as keys and values of D channels do.
inline Shape shape_of_rows(const winnow_decode_args& args) {
  const int64_t width = head_width(args);
  return {args.rows * args.queries, 1, args.key_dim, args.key_dim, width, width, 1.0f, 0.0f};
}

// The rows of a head's matrices, of type Row, from one on.
template <class Row>
inline const Row* rows_at(const winnow_decode_args& args, int64_t head, int64_t row) {
  return static_cast<const Row*>(args.latent->weight) + (head * rows_of_head(*args.latent) + row) * args.key_dim;
}

// Their scales, in the model's type T; null where rows are numbers as they are.
template <class Row, class T>
inline const T* scales_at(const winnow_decode_args& args, int64_t head, int64_t row) {
  if constexpr (std::is_same_v<Row, T>) return nullptr;
  return static_cast<const T*>(args.latent->scales) + head * rows_of_head(*args.latent) + row;
}

// numbers[t] times the scale of row t, if it has one.
template <class T>
inline Vec scaled(Vec numbers, const T* scales, int64_t t, int64_t count) {
  return scales ? numbers * load_up_to(scales + t, count - t) : numbers;
}

// Query i of a head.
template <class T>
inline const T* head_query(const winnow_decode_args& args, int64_t head, int64_t i) {
  return static_cast<const T*>(args.query) + i / args.queries * args.query_row_stride + head * args.query_head_stride +
         i % args.queries * args.query_token_stride;
}

// The channels [first, first + count) of the queries [from, from + kQueries), those of the padding zero, kLogitStride apart,
// times the scales of the rows that they meet.
template <int kQueries, class Row, class T>
inline void widen_channels(const winnow_decode_args& args, int64_t head, int64_t from, int64_t first, int64_t count,
                           float* numbers) {
  const T* scales = scales_at<Row, T>(args, head, first);
  for (int64_t q = 0; q < kQueries; ++q, numbers += kLogitStride) {
    if (from + q >= args.rows * args.queries) {
      std::memset(numbers, 0, static_cast<size_t>(count) * sizeof(float));
      continue;
    }
    const T* query = head_query<T>(args, head, from + q) + first;
    for (int64_t d = 0; d < count; d += Vec::width) {
      store(numbers + d, scaled(load_up_to(query + d, count - d), scales, d, count));
    }
  }
}

// sums[q] = the rows of the plain channels, weighted by those of the queries [from, from + kQueries), in the order of load_pair
// for Row.
template <int kQueries, class Row, class T>
inline void ask_rows(const winnow_decode_args& args, int64_t head, int64_t from, const HeadScratch& scratch) {
  const Shape shape = shape_of_rows(args);
  const int64_t plain = args.latent->plain_dim, dim = args.key_dim;
  std::memset(scratch.sums, 0, static_cast<size_t>(kQueries * shape.value_width) * sizeof(float));
  const Row* last = rows_at<Row>(args, head, plain) - 1;
  const int64_t most = block_rows<Row>(dim);
  for (int64_t first = 0; first < plain; first += kMaxChunkTokens) {
    const int64_t some = least(kMaxChunkTokens, plain - first);
    widen_channels<kQueries, Row, T>(args, head, from, first, some, scratch.logits);
    for (int64_t row = 0; row < some; row += most) {
      const int64_t count = least(most, some - row);
      const Row* rows = rows_at<Row>(args, head, first + row);
      weigh<kQueries>(shape, scratch.logits + row, rows, count, lines_behind(rows, rows + count * dim, last), scratch.sums);
    }
  }
}

// A row of sums in the order of load_pair for Row -> numbers of type T in their own.
template <class Row, class T>
inline void store_sums(const float* sums, int64_t dim, T* to) {
  int64_t d = 0;
  if constexpr (std::is_same_v<Row, T>) {
    for (; d + 2 * Vec::width <= dim; d += 2 * Vec::width) store_pair(to + d, load(sums + d), load(sums + d + Vec::width));
  }
  for (; d < dim; d += Vec::width) store_up_to(to + d, load(sums + d), dim - d);
}

template <class T, class Row>
void ask(const winnow_decode_args& args, int64_t head, void* asked, const HeadScratch& scratch) {
  const int64_t queries = args.rows * args.queries, dim = args.key_dim;
  const auto rotated_bytes = static_cast<size_t>(args.value_dim) * sizeof(T);
  for_query_blocks(queries, [&](int64_t from, auto size) {
    ask_rows<decltype(size)::value, Row, T>(args, head, from, scratch);
    for (int64_t q = 0; q < least(size, queries - from); ++q) {
      T* to = static_cast<T*>(asked) + ((from + q) * args.group_size + head) * asked_dim(args);
      store_sums<Row>(scratch.sums + q * head_width(args), dim, to);
      std::memcpy(to + dim, head_query<T>(args, head, from + q) + args.latent->plain_dim, rotated_bytes);
    }
  });
}

template <class T, class Row>
void answer(const winnow_decode_args& args, int64_t head, const void* sums, const HeadScratch& scratch) {
  const Shape shape = shape_of_rows(args);
  const int64_t outputs = args.latent->output_dim, plain = args.latent->plain_dim, heads = args.group_size;
  static constexpr int64_t kOneRow[] = {0};
  const T* first_sum = static_cast<const T*>(sums) + head * args.key_dim;
  const Queries queries{first_sum, 0, heads * args.key_dim, 0, kOneRow, shape.queries};
  for_query_blocks(shape.queries, [&](int64_t from, auto size) {
    constexpr int kQueries = decltype(size)::value;
    gather_queries<kQueries, Row, T>(shape, queries, from, scratch.query);
    for (int64_t first = 0; first < outputs; first += kMaxChunkTokens) {
      const int64_t count = least(kMaxChunkTokens, outputs - first);
      const Row *rows = rows_at<Row>(args, head, plain + first), *end = rows + count * args.key_dim;
      const T* scales = scales_at<Row, T>(args, head, plain + first);
      const Chunk chunk = {rows, end, count, count, kNoneHidden, 0, 1, 0, nullptr, 0};
      score<kQueries, Row>(shape, chunk, scratch.query, scratch.edge, scratch.logits);
      for (int64_t q = 0; q < least(kQueries, shape.queries - from); ++q) {
        T* to = static_cast<T*>(args.output) + ((from + q) * heads + head) * outputs + first;
        const float* found = scratch.logits + q * kLogitStride;
        for (int64_t t = 0; t < count; t += Vec::width) {
          store_up_to(to + t, scaled(load(found + t), scales, t, count), count - t);
        }
      }
    }
  });
}

// Of numbers of type T and matrices whose rows are of type Row.
template <class T, class Row>
constexpr LatentKernel kLatent{ask<T, Row>, answer<T, Row>};

}  // namespace
}  // namespace winnow
