// New tokens that are copied into buffers, byte by byte.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "bytes.hpp"
#include "known/compare.hpp"
#include "winnow_native.h"

class KnownAppend {
 public:
  KnownAppend(Bytes& from, uint64_t seed) : from_(from), arrays_(seed) {
    args_.rows = from_.among(0, 4);
    args_.heads = from_.among(1, 4);
    args_.tokens = from_.below(6);
    args_.capacity = from_.below(40);
    choose_lengths();
    choose(args_.first, before_[0]);
    if (from_.coin()) choose(args_.second, before_[1]);
  }

  // Runs the library. Throws Wrong where another byte was written, or one was not.
  void check() {
    bool room = true;
    for (int64_t held : held_) room &= held >= 0 && columns_behind(held) <= args_.capacity;
    const int32_t status = winnow_append(&args_);
    expect(status == (room ? WINNOW_OK : WINNOW_BAD_LENGTH), "room for new tokens");
    compare(args_.first, before_[0], room);
    if (args_.second.target) compare(args_.second, before_[1], room);
    for (int64_t row = 0; args_.lengths && row < args_.rows; ++row) {
      const int64_t more = args_.seen ? std::min(seen_[row] + args_.tokens, args_.window) : held_[row] + args_.tokens;
      expect(args_.lengths[row] == (room ? more : lengths_[row]), "tokens that a row holds");
    }
    for (int64_t row = 0; args_.seen && row < args_.rows; ++row) {
      expect(args_.seen[row] == seen_[row] + (room ? args_.tokens : 0), "tokens that a row saw");
    }
  }

 private:
  // Columns that there must be for new tokens, the first of which goes to a column.
  int64_t columns_behind(int64_t column) const {
    const int64_t end = column + args_.tokens;
    return args_.seen ? std::min(end, args_.window) : end;
  }

  // Tokens that rows hold: mostly no more than leave room for the new ones.
  void choose_lengths() {
    const bool apart = from_.coin();
    args_.column = some_length();
    if (apart && from_.coin()) return choose_rings();
    if (apart) args_.lengths = arrays_.zeros<int64_t>(args_.rows);
    for (int64_t row = 0; row < args_.rows; ++row) {
      held_.push_back(apart ? some_length() : args_.column);
      lengths_.push_back(held_.back());
      if (apart) args_.lengths[row] = held_.back();
    }
  }
  // Tokens that rows saw of rings, whose columns are mostly within the capacity.
  void choose_rings() {
    args_.window = from_.below(8) == 0 ? from_.among(1, 60) : from_.among(1, std::max<int64_t>(args_.capacity, 1));
    args_.lengths = arrays_.zeros<int64_t>(args_.rows);
    args_.seen = arrays_.zeros<int64_t>(args_.rows);
    for (int64_t row = 0; row < args_.rows; ++row) {
      args_.seen[row] = from_.below(200);
      seen_.push_back(args_.seen[row]);
      held_.push_back(args_.seen[row] % args_.window);
      lengths_.push_back(0);
    }
  }
  int64_t some_length() {
    const int64_t room = args_.capacity - args_.tokens;
    return room < 0 || from_.below(16) == 0 ? from_.among(0, 60) - 10 : from_.among(0, room);
  }

  void choose(winnow_columns& columns, std::vector<uint8_t>& before) {
    columns.bytes = from_.among(1, 150);
    const int64_t gap = from_.below(9);
    const bool heads_first = from_.coin();
    columns.token_stride = heads_first ? columns.bytes + gap : args_.heads * columns.bytes + gap;
    columns.head_stride = heads_first ? args_.tokens * columns.token_stride : columns.bytes;
    columns.row_stride = heads_first ? args_.heads * columns.head_stride : args_.tokens * columns.token_stride;
    const bool any = args_.rows > 0 && args_.tokens > 0;
    columns.source = arrays_.noise(any ? (args_.rows - 1) * columns.row_stride +
                                             (args_.heads - 1) * columns.head_stride +
                                             (args_.tokens - 1) * columns.token_stride + columns.bytes
                                       : 0);
    const int64_t held = args_.rows * args_.heads * args_.capacity * columns.bytes;
    uint8_t* target = arrays_.noise(held);
    columns.target = target;
    before.assign(target, target + held);
    if (from_.coin()) columns.spare = arrays_.noise(args_.rows * args_.heads * spared() * columns.bytes);
  }

  // Tokens of a row and a head that a spare has room for.
  int64_t spared() const { return args_.seen ? 1 : args_.tokens; }

  // Where a token of a row and a head belongs in a buffer.
  int64_t place(int64_t row, int64_t head, int64_t token) const {
    const int64_t column = held_[static_cast<size_t>(row)] + token;
    return (row * args_.heads + head) * args_.capacity + (args_.seen ? column % args_.window : column);
  }

  void compare(const winnow_columns& columns, std::vector<uint8_t> expected, bool room) const {
    const auto* source = static_cast<const uint8_t*>(columns.source);
    const auto* spare = static_cast<const uint8_t*>(columns.spare);
    for (int64_t row = 0; room && row < args_.rows; ++row) {
      for (int64_t head = 0; head < args_.heads; ++head) {
        const int64_t kept = (row * args_.heads + head) * spared();
        for (int64_t token = 0; token < args_.tokens; ++token) {
          const bool stays = token >= args_.tokens - spared();
          for (int64_t byte = 0; byte < columns.bytes; ++byte) {
            uint8_t& held = expected[static_cast<size_t>(place(row, head, token) * columns.bytes + byte)];
            if (spare && stays) {
              expect(spare[(kept + token % spared()) * columns.bytes + byte] == held, "a byte of a spare");
            }
            held = source[row * columns.row_stride + head * columns.head_stride + token * columns.token_stride + byte];
          }
        }
      }
    }
    const auto* target = static_cast<const uint8_t*>(columns.target);
    for (size_t i = 0; i < expected.size(); ++i) expect(target[i] == expected[i], "a byte of a buffer");
  }

  Bytes& from_;
  Arrays arrays_;
  winnow_append_args args_{};
  std::vector<int64_t> held_, lengths_, seen_;  // columns of the first new tokens, and what rows had before
  std::vector<uint8_t> before_[2];
};

inline void check_append(Bytes& from, uint64_t seed) { KnownAppend(from, seed).check(); }
