// A call of decode attention put together from bytes, of numbers that are finite, beside what its arrays stand for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "bytes.hpp"
#include "known/attention.hpp"
#include "known/numbers.hpp"
#include "known/rows.hpp"
#include "winnow_native.h"

// Sizes of a call: one row of few queries, or rows that share their parts and meet them as matrices.
struct DecodeSizes {
  int64_t rows, heads, group_size, queries, parts;
};

class KnownCall {
 protected:
  KnownCall(Bytes& from, uint64_t seed, const DecodeSizes& sizes) : from_(from), arrays_(seed) {
    args_.rows = sizes.rows;
    args_.heads = sizes.heads;
    args_.group_size = sizes.group_size;
    args_.queries = sizes.queries;
    args_.key_dim = dim();
    args_.value_dim = from_.coin() ? args_.key_dim : dim();
    args_.dtype = static_cast<int32_t>(from_.below(3));
    args_.threads = static_cast<int32_t>(from_.among(1, 3));
    args_.scaling = 0.125f;
    args_.softcap = from_.coin() ? 0.0f : 5.0f;
    if (from_.coin()) args_.sinks = static_cast<float*>(arrays_.numbers(WINNOW_F32, query_heads(), false));
  }

  struct Part {
    std::vector<double> keys, values;
  };

  // Many kernels are for whole blocks of 64 channels alone.
  int64_t dim() {
    switch (from_.below(4)) {
      case 0: return 16 * from_.among(1, 8);
      case 1: return 64 * from_.among(1, 4);
      default: return from_.among(1, 140);
    }
  }
  int64_t query_heads() const { return args_.heads * args_.group_size; }
  int64_t query_dim() const { return args_.latent ? args_.latent->plain_dim + args_.value_dim : args_.key_dim; }
  int64_t output_dim() const { return args_.latent ? args_.latent->output_dim : args_.value_dim; }

  void add_parts(int64_t most, bool shared) {
    int64_t* bounds = arrays_.zeros<int64_t>(args_.rows + 1);
    for (int64_t row = 0; row < args_.rows; ++row) {
      bounds[row + 1] = bounds[row] + (shared ? most : from_.below(most + 1));
    }
    winnow_part* parts = arrays_.zeros<winnow_part>(bounds[args_.rows]);
    for (int64_t i = 0; i < bounds[args_.rows]; ++i) {
      const bool again = shared ? i >= most : i > 0 && from_.below(3) == 0;
      if (again) {
        const int64_t same = shared ? i - most : i - 1;
        parts[i] = parts[same];
        part_of_.push_back(part_of_[same]);
      } else {
        part_of_.push_back(static_cast<int64_t>(known_.size()));
        known_.push_back(write(parts[i]));
      }
      // Some read the last slots only, as many as they like.
      if (from_.below(4) == 0) view(parts[i]);
    }
    args_.parts = parts;
    args_.part_bounds = bounds;
  }

  Part write(winnow_part& part) {
    part.packed = from_.below(4) != 0;
    Side keys{args_.heads, args_.key_dim, args_.dtype, {}, true, part.packed && from_.coin()};
    int64_t* starts = arrays_.zeros<int64_t>(args_.heads);
    int64_t* stops = arrays_.zeros<int64_t>(args_.heads);
    for (int64_t head = 0; head < args_.heads; ++head) {
      const int64_t slots = keys.grouped ? WINNOW_SCALE_GROUP * from_.below(5) : from_.below(150);
      starts[head] = part.slots;
      stops[head] = part.slots += slots;
      keys.head_of.insert(keys.head_of.end(), static_cast<size_t>(slots), head);
    }
    part.starts = starts;
    part.stops = stops;
    Side values = keys;
    values.keys = false;
    values.dim = args_.value_dim;
    RowWriter key_writer(from_, arrays_, keys), value_writer(from_, arrays_, values);
    if (!part.packed) return {key_writer.write_dense(part.keys), value_writer.write_dense(part.values)};
    if (args_.latent) return {key_writer.write_whole(part.keys), value_writer.write_whole(part.values)};
    return {key_writer.write_packed(part.keys), value_writer.write_packed(part.values)};
  }

  void view(winnow_part& part) {
    int64_t* starts = arrays_.zeros<int64_t>(args_.heads);
    const int64_t step = part.keys.scaling == WINNOW_GROUPED ? WINNOW_SCALE_GROUP : 1;
    for (int64_t head = 0; head < args_.heads; ++head) {
      const int64_t steps = (part.stops[head] - part.starts[head]) / step;
      starts[head] = part.starts[head] + (steps ? from_.below(steps + 1) * step : 0);
    }
    part.starts = starts;
  }

  // Rings that are full, or on their way there.
  void add_ring() {
    const bool full = from_.coin();
    ring_.window = from_.among(1, 150);
    ring_.capacity = full ? ring_.window : from_.among(1, ring_.window);
    int64_t* seen = arrays_.zeros<int64_t>(args_.rows);
    for (int64_t row = 0; row < args_.rows; ++row) seen[row] = full ? from_.below(400) : from_.below(ring_.capacity + 1);
    ring_.seen = seen;
    const int64_t tokens = args_.rows * args_.heads * ring_.capacity;
    ring_.keys = arrays_.numbers(args_.dtype, tokens * args_.key_dim, false);
    ring_.values = arrays_.numbers(args_.dtype, tokens * args_.value_dim, false);
    ring_keys_ = numbers_at(args_.dtype, ring_.keys, tokens * args_.key_dim);
    ring_values_ = numbers_at(args_.dtype, ring_.values, tokens * args_.value_dim);
    args_.ring = &ring_;
  }

  void add_tail() {
    // Every query sees itself at least.
    args_.tail_capacity = args_.queries + from_.below(70);
    int64_t* lengths = arrays_.zeros<int64_t>(args_.rows);
    for (int64_t row = 0; row < args_.rows; ++row) {
      lengths[row] = args_.ring ? args_.queries : from_.among(args_.queries, args_.tail_capacity);
    }
    args_.tail_lengths = lengths;
    const int64_t tokens = args_.rows * args_.heads * args_.tail_capacity;
    args_.tail_keys = arrays_.numbers(args_.dtype, tokens * args_.key_dim, false);
    args_.tail_values = arrays_.numbers(args_.dtype, tokens * args_.value_dim, false);
    tail_keys_ = numbers_at(args_.dtype, args_.tail_keys, tokens * args_.key_dim);
    tail_values_ = numbers_at(args_.dtype, args_.tail_values, tokens * args_.value_dim);
  }

  void add_queries() {
    const int64_t tokens = args_.queries, dim = query_dim(), gap = from_.below(5);
    const bool heads_first = from_.coin();
    args_.query_token_stride = heads_first ? dim + gap : query_heads() * dim + gap;
    args_.query_head_stride = heads_first ? tokens * args_.query_token_stride : dim;
    args_.query_row_stride = heads_first ? query_heads() * args_.query_head_stride : tokens * args_.query_token_stride;
    const int64_t last = (args_.rows - 1) * args_.query_row_stride + (query_heads() - 1) * args_.query_head_stride +
                         (tokens - 1) * args_.query_token_stride;
    args_.query = arrays_.numbers(args_.dtype, last + dim, false);
    queries_ = numbers_at(args_.dtype, args_.query, last + dim);
    args_.output = arrays_.zeros<char>(args_.rows * tokens * query_heads() * output_dim() * bytes_of(args_.dtype));
  }

  const double* query_at(int64_t row, int64_t head, int64_t token) const {
    return queries_.data() + row * args_.query_row_stride + head * args_.query_head_stride +
           token * args_.query_token_stride;
  }

  // What a new token of a row sees in a head: its parts, and the tail up to itself; of a ring and the tail the last `window`.
  std::vector<Token> seen(int64_t row, int64_t head, int64_t token) const {
    std::vector<Token> tokens;
    for (int64_t i = args_.part_bounds[row]; i < args_.part_bounds[row + 1]; ++i) {
      const Part& part = known_[part_of_[i]];
      for (int64_t slot = args_.parts[i].starts[head]; slot < args_.parts[i].stops[head]; ++slot) {
        tokens.push_back({part.keys.data() + slot * args_.key_dim, part.values.data() + slot * args_.value_dim});
      }
    }
    int64_t hidden = 0;
    if (args_.ring) {
      const int64_t count = ring_.seen[row], all = count + token + 1, from = std::max<int64_t>(0, all - ring_.window);
      for (int64_t t = from; t < count; ++t) {
        const int64_t place = (row * args_.heads + head) * ring_.capacity + t % ring_.window;
        tokens.push_back({ring_keys_.data() + place * args_.key_dim, ring_values_.data() + place * args_.value_dim});
      }
      hidden = std::max<int64_t>(0, from - count);
    }
    const int64_t first = (row * args_.heads + head) * args_.tail_capacity;
    for (int64_t t = first + hidden; t <= first + args_.tail_lengths[row] - args_.queries + token; ++t) {
      tokens.push_back({tail_keys_.data() + t * args_.key_dim, tail_values_.data() + t * args_.value_dim});
    }
    return tokens;
  }

  Bytes& from_;
  Arrays arrays_;
  winnow_decode_args args_{};
  std::vector<Part> known_;
  std::vector<int64_t> part_of_;
  winnow_ring ring_{};
  std::vector<double> ring_keys_, ring_values_, tail_keys_, tail_values_, queries_;
};
