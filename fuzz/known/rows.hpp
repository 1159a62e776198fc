// Keys or values in every format, written number by number, with what they stand for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "bytes.hpp"
#include "known/integers.hpp"
#include "known/numbers.hpp"
#include "known/rotation.hpp"
#include "known/stand_ins.hpp"
#include "winnow_native.h"

// One side of a part: slots and the heads that own them.
struct Side {
  int64_t heads, dim;
  int32_t dtype;
  std::vector<int64_t> head_of;  // [S]
  bool keys;
  bool grouped;  // heads begin at whole groups of slots
  int64_t slots() const { return static_cast<int64_t>(head_of.size()); }
};

class RowWriter {
 public:
  RowWriter(Bytes& from, Arrays& arrays, const Side& side) : from_(from), arrays_(arrays), side_(side) {}

  // Rows as they are -> their numbers [S, dim].
  std::vector<double> write_dense(winnow_rows& rows) {
    rows.data = arrays_.numbers(side_.dtype, side_.slots() * side_.dim, false);
    rows.data_bytes = side_.slots() * side_.dim * bytes_of(side_.dtype);
    return numbers_at(side_.dtype, rows.data, side_.slots() * side_.dim);
  }

  // Rows of a format that the bytes choose -> their numbers [S, dim].
  std::vector<double> write_packed(winnow_rows& rows) {
    choose_width(rows);
    const int64_t kind = from_.below(4);
    if (kind == 0 && !(side_.keys && side_.grouped)) return write_masked(rows);
    if (kind == 1 && side_.keys) return write_columns(rows);
    return write_all(rows);
  }

  // The same of a format that keeps all channels.
  std::vector<double> write_whole(winnow_rows& rows) {
    choose_width(rows);
    return write_all(rows);
  }

 private:
  using Entries = std::vector<std::vector<double>>;  // of every slot

  void choose_width(winnow_rows& rows) {
    constexpr int32_t widths[] = {16, 8, 6, 4, 3, 2};
    rows.bits = widths[side_.keys && side_.grouped ? from_.among(1, 5) : from_.below(6)];
    rows.kept = side_.dim;
  }

  std::vector<double> write_all(winnow_rows& rows) {
    std::vector<double> numbers = joined(write_entries(rows, kept_by_all(side_.dim)));
    if (rows.bits != 16) turn(rows, numbers);
    return numbers;
  }

  std::vector<int64_t> kept_by_all(int64_t count) const {
    return std::vector<int64_t>(static_cast<size_t>(side_.slots()), count);
  }
  static std::vector<double> joined(const Entries& entries) {
    std::vector<double> numbers;
    for (const auto& row : entries) numbers.insert(numbers.end(), row.begin(), row.end());
    return numbers;
  }
  int64_t row_bytes(const winnow_rows& rows, int64_t count) const {
    return rows.bits == 16 ? count * bytes_of(side_.dtype) : integer_row_bytes(count, rows.bits);
  }

  // Rows of counts[slot] entries, one behind the other.
  Entries write_entries(winnow_rows& rows, const std::vector<int64_t>& counts) {
    if (!counts.empty()) rows.row_bytes = row_bytes(rows, counts[0]);
    for (int64_t count : counts) rows.data_bytes += row_bytes(rows, count);
    if (counts.empty()) rows.row_bytes = row_bytes(rows, rows.kept);
    if (rows.bits != 16) return write_integers_of(rows, counts);
    const int64_t bytes = bytes_of(side_.dtype);
    rows.data = arrays_.numbers(side_.dtype, rows.data_bytes / bytes, false);
    Entries entries;
    int64_t first = 0;
    for (int64_t count : counts) {
      entries.push_back(numbers_at(side_.dtype, static_cast<const uint8_t*>(rows.data) + first * bytes, count));
      first += count;
    }
    return entries;
  }

  Entries write_integers_of(winnow_rows& rows, const std::vector<int64_t>& counts) {
    scale(rows);
    uint8_t* row = arrays_.zeros<uint8_t>(rows.data_bytes);
    rows.data = row;
    Entries entries;
    for (size_t slot = 0; slot < counts.size(); ++slot) {
      std::vector<uint32_t> integers(static_cast<size_t>(counts[slot]));
      for (uint32_t& each : integers) each = arrays_.random() & ((1u << rows.bits) - 1);
      write_integers(integers, rows.bits, row);
      row += row_bytes(rows, counts[slot]);
      entries.emplace_back();
      for (size_t i = 0; i < integers.size(); ++i) {
        entries.back().push_back(meant(rows, static_cast<int64_t>(slot), static_cast<int64_t>(i), integers[i]));
      }
    }
    return entries;
  }

  // Scales, and zeros where there are any, for which integers are about as large as 1.
  void scale(winnow_rows& rows) {
    const int64_t slots = side_.slots(), kind = rows.masks ? 0 : from_.below(3);
    const auto draw = [&](int64_t count) { return numbers_of_size(arrays_, side_.dtype, count, 1 - rows.bits); };
    if (side_.keys ? side_.grouped : kind == 2) {
      rows.scaling = WINNOW_GROUPED;
      const int64_t groups = side_.keys ? slots / WINNOW_SCALE_GROUP * rows.kept : slots * groups_of(rows.kept);
      rows.scales = draw(groups);
      rows.zeros = arrays_.numbers(side_.dtype, groups, false);
    } else if (kind == 1) {
      rows.scaling = WINNOW_CHANNEL_GROUPS;
      rows.scale_group = from_.coin() ? 32 : 64;
      rows.scales = draw(slots * groups_of(rows.kept, rows.scale_group));
    } else {
      rows.scaling = WINNOW_PER_SLOT;
      rows.scales = draw(slots);
    }
  }
  static int64_t groups_of(int64_t count, int64_t size = WINNOW_SCALE_GROUP) { return (count + size - 1) / size; }

  // The number that an integer of a row stands for.
  double meant(const winnow_rows& rows, int64_t slot, int64_t i, uint32_t integer) const {
    int64_t group = slot;
    if (rows.scaling == WINNOW_CHANNEL_GROUPS) {
      group = slot * groups_of(rows.kept, rows.scale_group) + i / rows.scale_group;
    } else if (rows.scaling == WINNOW_GROUPED && side_.keys) {
      group = slot / WINNOW_SCALE_GROUP * rows.kept + i;
    } else if (rows.scaling == WINNOW_GROUPED) {
      group = slot * groups_of(rows.kept) + i / WINNOW_SCALE_GROUP;
    }
    const double scale = number_at(side_.dtype, rows.scales, group);
    if (rows.scaling != WINNOW_GROUPED) return scale * signed_integer(integer, rows.bits);
    return number_at(side_.dtype, rows.zeros, group) + scale * integer;
  }

  // Keys of which all slots of a head keep the same channels; the others are zero.
  std::vector<double> write_columns(winnow_rows& rows) {
    rows.kept = from_.among(0, side_.dim);
    int16_t* channels = arrays_.zeros<int16_t>(side_.heads * rows.kept);
    for (int64_t head = 0; head < side_.heads; ++head) {
      int16_t* next = channels + head * rows.kept;
      for (int64_t d = 0, left = rows.kept; d < side_.dim; ++d) {
        // One of those that are left, or this one must be: ascending channels, some of them.
        if (left && static_cast<int64_t>(arrays_.random()) % (side_.dim - d) < left) {
          *next++ = static_cast<int16_t>(d);
          --left;
        }
      }
    }
    rows.channels = channels;
    const Entries entries = write_entries(rows, kept_by_all(rows.kept));
    std::vector<double> numbers(static_cast<size_t>(side_.slots() * side_.dim));
    for (int64_t slot = 0; slot < side_.slots(); ++slot) {
      for (int64_t i = 0; i < rows.kept; ++i) {
        numbers[slot * side_.dim + channels[side_.head_of[slot] * rows.kept + i]] = entries[slot][i];
      }
    }
    return numbers;
  }

  // Slots that keep channels of their own: as many each, or not.
  std::vector<double> write_masked(winnow_rows& rows) {
    const int64_t mask_bytes = (side_.dim + 7) / 8, most = from_.among(0, side_.dim);
    const bool ragged = from_.coin();
    uint8_t* masks = arrays_.zeros<uint8_t>(side_.slots() * mask_bytes);
    std::vector<int64_t> counts;
    for (int64_t slot = 0; slot < side_.slots(); ++slot) {
      counts.push_back(ragged ? static_cast<int64_t>(arrays_.random()) % (side_.dim + 1) : most);
      for (int64_t d = 0, left = counts.back(); d < side_.dim; ++d) {
        if (!left || static_cast<int64_t>(arrays_.random()) % (side_.dim - d) >= left) continue;
        masks[slot * mask_bytes + d / 8] |= static_cast<uint8_t>(1 << d % 8);
        --left;
      }
    }
    rows.masks = masks;
    stand_in(rows, counts);
    const Entries entries = write_entries(rows, counts);
    if (ragged) begin_rows(rows, counts);
    return spread(rows, entries);
  }

  // What stands for pruned entries.
  void stand_in(winnow_rows& rows, const std::vector<int64_t>& counts) {
    const int64_t slots = side_.slots(), dim = side_.dim;
    const bool norms = from_.coin();
    constexpr int32_t without[] = {WINNOW_DEGENERATE, WINNOW_CONSTANT};
    rows.recovery = norms ? static_cast<int32_t>(from_.below(WINNOW_CONSTANT + 1)) : without[from_.below(2)];
    rows.fill = 0.375f;
    rows.stats_width = statistics_needed(rows.recovery) + static_cast<int32_t>(from_.below(2));
    rows.stats = numbers_of_size(arrays_, side_.dtype, slots * rows.stats_width, -2);
    rows.seed = arrays_.random();
    if (is_drawn(rows.recovery)) rows.draws = table();
    if (!norms) return;
    float* inverse = static_cast<float*>(arrays_.numbers(WINNOW_F32, side_.heads * dim, false));
    rows.inverse_norms = inverse;
    if (!from_.coin()) return;
    // Of rows of one length all have as many bytes.
    for (int64_t count : counts) rows.signs_bytes += (dim - count + 7) / 8;
    if (!counts.empty()) rows.sign_row_bytes = (dim - counts[0] + 7) / 8;
    rows.signs = arrays_.noise(rows.signs_bytes);
  }
  const float* table() {
    float* draws = static_cast<float*>(arrays_.numbers(WINNOW_F32, WINNOW_DRAWS, false));
    std::sort(draws, draws + WINNOW_DRAWS);
    return draws;
  }

  // Where the rows of every 32nd slot begin.
  void begin_rows(winnow_rows& rows, const std::vector<int64_t>& counts) {
    int64_t* starts = arrays_.zeros<int64_t>((side_.slots() + WINNOW_START_STEP - 1) / WINNOW_START_STEP * 2);
    int64_t data = 0, signs = 0;
    for (int64_t slot = 0; slot < side_.slots(); ++slot) {
      if (slot % WINNOW_START_STEP == 0) {
        starts[slot / WINNOW_START_STEP * 2] = data;
        starts[slot / WINNOW_START_STEP * 2 + 1] = rows.signs ? signs : 0;
      }
      data += row_bytes(rows, counts[slot]);
      signs += (side_.dim - counts[slot] + 7) / 8;
    }
    rows.starts = starts;
    rows.row_bytes = rows.sign_row_bytes = 0;
  }

  // Entries in their channels, between what stands for the others.
  std::vector<double> spread(const winnow_rows& rows, const Entries& entries) const {
    const int64_t dim = side_.dim, mask_bytes = (dim + 7) / 8;
    std::vector<double> numbers;
    const uint8_t* signs = rows.signs;
    for (int64_t slot = 0; slot < side_.slots(); ++slot) {
      const std::vector<double> sizes = sizes_of_pruned(rows, side_.dtype, slot, dim);
      int64_t kept = 0, gone = 0;
      for (int64_t d = 0; d < dim; ++d) {
        if (rows.masks[slot * mask_bytes + d / 8] >> d % 8 & 1) {
          numbers.push_back(entries[slot][kept++]);
          continue;
        }
        double number = sizes[d];
        if (rows.inverse_norms) number *= rows.inverse_norms[side_.head_of[slot] * dim + d];
        if (signs && signs[gone / 8] >> gone % 8 & 1) number = -number;
        ++gone;
        numbers.push_back(number);
      }
      if (signs) signs += (gone + 7) / 8;
    }
    return numbers;
  }

  // Integers of rows in other coordinates -> the rows.
  void turn(winnow_rows& rows, std::vector<double>& numbers) {
    const int64_t dim = side_.dim;
    rows.rotated = from_.coin();
    const bool smoothed = side_.keys && from_.coin(), centered = side_.keys && from_.coin();
    if (smoothed) rows.spreads = numbers_of_size(arrays_, side_.dtype, side_.heads * dim, -1);
    if (centered) rows.means = arrays_.numbers(side_.dtype, side_.heads * dim, false);
    for (int64_t slot = 0; slot < side_.slots(); ++slot) {
      double* row = numbers.data() + slot * dim;
      if (rows.rotated) rotate_row(row, dim);
      for (int64_t d = 0; d < dim; ++d) {
        const int64_t channel = side_.head_of[slot] * dim + d;
        if (smoothed) row[d] *= number_at(side_.dtype, rows.spreads, channel);
        if (centered) row[d] += number_at(side_.dtype, rows.means, channel);
      }
    }
  }

  Bytes& from_;
  Arrays& arrays_;
  const Side& side_;
};
