// The promise of a chunk function, whatever the storage format it reads.
//
// A segment is the tokens of one KV head in one format: a part of a prefix, with all rows that read it, or the dense
// tail of one row. It is cut into chunks; a chunk function turns one chunk into the partial results of all queries that
// meet it, and the partial results of a row, of any formats, are merged by log-sum-exp.
#pragma once

#include <cstdint>

#include "sizes.hpp"
#include "winnow_native.h"

namespace winnow {

// Tokens in a chunk never exceed this; it sizes the scratch.
constexpr int64_t kMaxChunkTokens = 1024;

// Per-query statistics are padded to whole vectors of the widest instruction set.
constexpr int64_t kQueryPad = 16;

// Query blocks may run past the last (3 are handled as 4, in tiles 5 as 8), so rows of queries have some to spare.
constexpr int64_t kSpareQueries = 3;

// The largest of "no logits at all": finite, so that differences of it never make NaN.
constexpr float kNoMax = -1e30f;

// Sizes of a chunk function's work; chunks of a call differ in their queries only.
struct Shape {
  int64_t queries;      // G·Q for every row that reads the chunk, row after row
  int64_t group_size;   // G, query heads of a KV head; query j is head j % G of new token j / G of all rows' tokens
  int64_t key_dim;      // D
  int64_t value_dim;    // Dv
  int64_t query_width;  // D padded, the stride of a query in scratch
  int64_t value_width;  // Dv padded, the stride of a query in a partial result
  float scaling;
  float softcap;  // 0: none

  int64_t token_of(int64_t query) const { return small(query) / small(group_size); }
  int64_t head_of(int64_t query) const { return small(query) % small(group_size); }
  int64_t query_rows() const { return queries + kSpareQueries; }
  // Whole vectors may be read from any query on.
  int64_t stats_width() const { return round_up(queries, kQueryPad) + kQueryPad; }
  int64_t acc_size() const { return query_rows() * value_width; }

 private:
  // Division of 64-bit numbers is several times slower.
  static uint32_t small(int64_t n) { return static_cast<uint32_t>(n); }
};

// Consecutive tokens of one segment.
struct Chunk {
  const void* keys;
  const void* values;
  int64_t tokens;
  int64_t visible;          // new token i sees the first clamp(visible + i, 0, tokens) tokens
  int64_t hidden;           // but not the first clamp(hidden + i, 0, tokens) of these
  int64_t first_reader;     // the rows that read them, in the list of these
  int64_t readers;          // more than one only where every new token sees all tokens
  int64_t head;             // of the KV head in its rows
  const winnow_part* part;  // of packed chunks, which have no keys and values above; else null
  int64_t slot;             // the first token's slot in the part
};

// `hidden` of chunks that no new token has to look back too far for.
constexpr int64_t kNoneHidden = -(int64_t{1} << 32);

// True if every query sees all tokens.
inline bool all_see(const Shape& shape, const Chunk& chunk) {
  return chunk.visible >= chunk.tokens && chunk.hidden + shape.token_of(shape.queries - 1) <= 0;
}

// Queries of one KV head where they lie: head g of new token i of the reader r starts at
// data + rows[r]·row_stride + i·token_stride + g·head_stride.
struct Queries {
  const void* data;
  int64_t head_stride;
  int64_t token_stride;
  int64_t row_stride;
  const int64_t* rows;
  int64_t tokens;  // new tokens of a row

  int64_t reader_of(int64_t token) const { return static_cast<uint32_t>(token) / static_cast<uint32_t>(tokens); }
};

// A thread's own memory for one chunk.
struct Scratch {
  float* query;     // [kQueryPad, query_width]
  float* logits;    // [kQueryPad, kLogitStride]
  void* edge;       // rows of an incomplete tile
  float* packed;    // [packed_floats(shape)] where there are packed chunks
  float* matrix;    // [matrix_floats(shape)] where many queries meet a chunk
  uint32_t* tiles;  // [tile_words(shape)], the same
};

// Softmax numerators relative to `max`, their sum, and the values weighted by them. The value dimension is in
// the order of load_pair for the dtype of the output: pairs of vectors while they last, then single vectors.
struct Partial {
  float* max;  // [stats_width], kNoMax where nothing is visible
  float* sum;  // [stats_width]
  float* acc;  // [query_rows, value_width]
};

// Not a power of two: rows of logits would otherwise fall into the same cache sets.
constexpr int64_t kLogitStride = kMaxChunkTokens + 32;

using ChunkFunction = void (*)(const Shape&, const Chunk&, const Queries&, const Scratch&, const Partial&);

// The partial results of one (row, KV head), one for every chunk that it reads.
struct HeadPartials {
  int64_t chunks;
  const Partial* partials;  // [chunks]; numbers of other rows may lie behind those of this one
  float* weights;           // [chunks, stats_width], to work with
  const float* sinks;       // [G] or null
};

// Memory for the results of one KV head: element (i, g) starts at data + i·token_stride + g·value_dim.
struct Output {
  void* data;
  int64_t token_stride;
};

using MergeFunction = void (*)(const Shape&, const HeadPartials&, const Output&);

}  // namespace winnow
