// Problems of decode attention, put together from bytes: everything that winnow_native.h promises about sizes holds,
// numbers and masks are any.
#pragma once

#include <algorithm>
#include <vector>

#include "bytes.hpp"
#include "packed/format.hpp"
#include "winnow_native.h"

class DecodeProblem {
 public:
  DecodeProblem(Bytes& from, uint64_t seed) : from_(from), arrays_(seed) {
    args.rows = from.among(1, 3);
    args.heads = from.among(1, 3);
    args.group_size = from.among(1, 9);
    args.queries = from.coin() ? 1 : from.among(1, 60);
    args.key_dim = dim();
    args.value_dim = from.coin() ? args.key_dim : dim();
    args.tail_capacity = from.below(70);
    args.dtype = static_cast<int32_t>(from.below(3));
    args.threads = static_cast<int32_t>(from.among(1, 3));
    args.scaling = 0.125f;
    args.softcap = from.coin() ? 0.0f : 5.0f;
    any_ = from.below(4) == 0;
    if (from.coin()) args.sinks = static_cast<float*>(arrays_.numbers(WINNOW_F32, query_heads(), any_));
    add_parts();
    if (from_.below(4) == 0) add_ring();
    add_tail();
    add_queries();
  }

  winnow_decode_args args{};

 private:
  int64_t dim() { return from_.coin() ? from_.among(1, 140) : 16 * from_.among(1, 16); }
  int64_t element() const { return args.dtype == WINNOW_F32 ? 4 : 2; }
  int64_t query_heads() const { return args.heads * args.group_size; }
  void* numbers(int64_t count) { return arrays_.numbers(args.dtype, count, any_); }

  void add_parts() {
    int64_t* bounds = arrays_.zeros<int64_t>(args.rows + 1);
    for (int64_t row = 0; row < args.rows; ++row) bounds[row + 1] = bounds[row] + from_.below(3);
    winnow_part* parts = arrays_.zeros<winnow_part>(bounds[args.rows]);
    for (int64_t i = 0; i < bounds[args.rows]; ++i) {
      // Rows read the same memory together.
      if (i > 0 && from_.below(3) == 0) {
        parts[i] = parts[i - 1];
      } else {
        fill(parts[i]);
      }
    }
    args.parts = parts;
    args.part_bounds = bounds;
  }

  void fill(winnow_part& part) {
    part.packed = from_.coin();
    const bool grouped = part.packed && from_.coin();
    int64_t* starts = arrays_.zeros<int64_t>(args.heads);
    int64_t* stops = arrays_.zeros<int64_t>(args.heads);
    for (int64_t head = 0; head < args.heads; ++head) {
      const int64_t slots = grouped ? 32 * from_.below(4) : from_.coin() ? from_.below(80) : from_.below(600);
      starts[head] = part.slots;
      part.slots += slots;
      stops[head] = part.slots;
      // A view of a head's last slots.
      if (!part.packed && slots && from_.below(4) == 0) starts[head] += from_.below(slots);
    }
    part.starts = starts;
    part.stops = stops;
    if (!part.packed) {
      dense(part.keys, part.slots * args.key_dim);
      dense(part.values, part.slots * args.value_dim);
      return;
    }
    pack(part.keys, part.slots, args.key_dim, true, grouped);
    pack(part.values, part.slots, args.value_dim, false, from_.coin());
  }

  void dense(winnow_rows& rows, int64_t count) {
    rows.data = numbers(count);
    rows.data_bytes = count * element();
  }

  // One side of a packed part; grouped: scales and zeros of 32 slots (keys) or channels (values).
  void pack(winnow_rows& rows, int64_t slots, int64_t dim, bool keys, bool grouped) {
    constexpr int32_t widths[] = {16, 8, 4, 2};
    rows.bits = grouped ? widths[from_.among(1, 3)] : widths[from_.below(4)];
    rows.kept = dim;
    const int64_t kind = from_.below(keys ? 4 : 3);
    if (kind == 3) channels(rows, dim);
    if ((kind == 1 || kind == 2) && !grouped) return prune(rows, slots, dim, kind == 2);
    rows.row_bytes = bytes_of(rows, rows.kept);
    rows.data_bytes = slots * rows.row_bytes;
    rows.data = rows.bits == 16 ? numbers(slots * rows.kept) : arrays_.noise(rows.data_bytes);
    const int64_t groups = keys ? slots / 32 * rows.kept : slots * ((rows.kept + 31) / 32);
    scale(rows, slots, grouped ? groups : 0);
  }

  void channels(winnow_rows& rows, int64_t dim) {
    rows.kept = from_.among(0, dim);
    int16_t* list = arrays_.zeros<int16_t>(args.heads * rows.kept);
    for (int64_t i = 0; i < args.heads * rows.kept; ++i) {
      list[i] = static_cast<int16_t>(dim - rows.kept + i % std::max<int64_t>(rows.kept, 1));
    }
    rows.channels = list;
  }

  // Channels of every slot's own. What masks promise need not be what is there.
  void prune(winnow_rows& rows, int64_t slots, int64_t dim, bool ragged) {
    const int64_t mask_bytes = (dim + 7) / 8, kept = from_.among(0, dim);
    uint8_t* masks = arrays_.noise(slots * mask_bytes);
    const uint8_t sparse = from_.next();
    for (int64_t i = 0; i < slots * mask_bytes; ++i) masks[i] &= sparse;
    rows.masks = masks;
    rows.recovery = static_cast<int32_t>(from_.below(WINNOW_CONSTANT + 1));
    rows.stats_width = winnow::statistics_of(rows.recovery) + static_cast<int32_t>(from_.below(2));
    rows.stats = numbers(slots * rows.stats_width);
    rows.seed = static_cast<uint32_t>(from_.below(65536));
    if (winnow::draws_sizes(rows.recovery)) {
      rows.draws = static_cast<float*>(arrays_.numbers(WINNOW_F32, WINNOW_DRAWS, any_));
    }
    const bool norms = rows.recovery != WINNOW_DEGENERATE || from_.coin(), has_signs = norms && from_.coin();
    if (norms) rows.inverse_norms = static_cast<float*>(arrays_.numbers(WINNOW_F32, args.heads * dim, any_));
    const int64_t row = bytes_of(rows, kept), sign_row = (dim - kept + 7) / 8;
    rows.data_bytes = slots * row;
    rows.data = rows.bits == 16 ? numbers(slots * kept) : arrays_.noise(rows.data_bytes);
    if (has_signs) {
      rows.signs_bytes = slots * sign_row;
      rows.signs = arrays_.noise(rows.signs_bytes);
    }
    if (ragged) {
      rows.starts = starts_of(rows, slots);
    } else {
      rows.row_bytes = row;
      rows.sign_row_bytes = has_signs ? sign_row : 0;
    }
    scale(rows, slots, 0);
  }

  const int64_t* starts_of(const winnow_rows& rows, int64_t slots) {
    int64_t* starts = arrays_.zeros<int64_t>((slots + 31) / 32 * 2);
    const int64_t width = rows.bits == 16 ? element() : 1;
    for (int64_t block = 0; block < (slots + 31) / 32; ++block) {
      starts[2 * block] = from_.below(65536) % (rows.data_bytes / width + 1) * width;
      starts[2 * block + 1] = from_.below(65536) % (rows.signs_bytes + 1);
    }
    return starts;
  }

  int64_t bytes_of(const winnow_rows& rows, int64_t count) const {
    return rows.bits == 16 ? count * element() : (count * rows.bits + 7) / 8;
  }

  // groups: scales and zeros; 0: a scale for every slot.
  void scale(winnow_rows& rows, int64_t slots, int64_t groups) {
    if (rows.bits == 16) return;
    rows.scaling = groups ? WINNOW_GROUPED : WINNOW_PER_SLOT;
    rows.scales = numbers(groups ? groups : slots);
    if (groups) rows.zeros = numbers(groups);
  }

  void add_ring() {
    ring_.window = from_.among(1, 90);
    ring_.capacity = from_.among(1, ring_.window);
    const int64_t most = ring_.capacity < ring_.window ? ring_.capacity : 300;
    int64_t* seen = arrays_.zeros<int64_t>(args.rows);
    for (int64_t row = 0; row < args.rows; ++row) seen[row] = from_.below(most + 1);
    ring_.seen = seen;
    ring_.keys = numbers(args.rows * args.heads * ring_.capacity * args.key_dim);
    ring_.values = numbers(args.rows * args.heads * ring_.capacity * args.value_dim);
    args.ring = &ring_;
    args.tail_capacity = args.queries + from_.below(8);
  }

  void add_tail() {
    const int64_t tokens = args.rows * args.heads * args.tail_capacity;
    int64_t* lengths = arrays_.zeros<int64_t>(args.rows);
    for (int64_t row = 0; row < args.rows; ++row) {
      lengths[row] = args.ring ? args.queries : from_.below(args.tail_capacity + 1);
    }
    args.tail_lengths = lengths;
    args.tail_keys = numbers(tokens * args.key_dim);
    args.tail_values = numbers(tokens * args.value_dim);
  }

  void add_queries() {
    const int64_t gap = from_.coin() ? 0 : from_.below(5), tokens = args.queries, dim = args.key_dim;
    args.query_token_stride = from_.coin() ? dim + gap : query_heads() * dim;
    args.query_head_stride = args.query_token_stride == query_heads() * dim ? dim : tokens * args.query_token_stride;
    args.query_row_stride =
        args.query_head_stride == dim ? tokens * args.query_token_stride : query_heads() * args.query_head_stride;
    const int64_t last = (args.rows - 1) * args.query_row_stride + (query_heads() - 1) * args.query_head_stride +
                         (tokens - 1) * args.query_token_stride;
    args.query = numbers(last + dim);
    args.output = arrays_.zeros<char>(args.rows * tokens * query_heads() * args.value_dim * element());
  }

  Bytes& from_;
  Arrays arrays_;
  winnow_ring ring_{};
  bool any_ = false;
};
