// Keys and values of a chunk in fp32, a block of tokens at a time. Scales of slots are left to logits and weights.
#pragma once

#include <cstdint>

#include "attend/contract.hpp"
#include "matrix/sizes.hpp"
#include "packed/format.hpp"
#include "packed/rows.hpp"
#include "packed/slot_scales.hpp"
#include "simd/prefetch.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Rows of numbers as they are. kPaired: channels are in the order of load_pair for T, as sums of values are.
template <class T, bool kPaired>
class DenseRows {
 public:
  static constexpr bool kInPairs = kPaired;

  DenseRows(const void* rows, int64_t dim) : at_(static_cast<const T*>(rows)), dim_(dim) {}

  int64_t dim() const { return dim_; }

  void read(int64_t count, float* out, float* scales) {
    for (int64_t t = 0; t < count; t += Vec::width) store(scales + t, broadcast(1.0f));
    for (int64_t i = 0; i < count; ++i, at_ += dim_, out += dim_) {
      for (int64_t byte = 0; byte < dim_ * static_cast<int64_t>(sizeof(T)); byte += kLine) {
        prefetch(reinterpret_cast<const char*>(at_) + kPrefetchBytes + byte);
      }
      widen(out);
    }
  }

 private:
  void widen(float* out) const {
    int64_t d = 0;
    if constexpr (kPaired) {
      for (; d + 2 * Vec::width <= dim_; d += 2 * Vec::width) {
        Vec a, b;
        load_pair(at_ + d, a, b);
        store(out + d, a);
        store(out + d + Vec::width, b);
      }
    }
    for (; d < dim_; d += Vec::width) store(out + d, load_up_to(at_ + d, dim_ - d));
  }

  const T* at_;
  int64_t dim_;
};

// Rows of a packed part. Channels that keys do not have are absent, and rotated rows stay as they are.
template <class T, bool kKeys>
class PackedRows {
 public:
  static constexpr bool kInPairs = false;

  // `memory` is for kReaderRows rows.
  PackedRows(const winnow_rows& rows, const Chunk& chunk, int64_t dim, float* memory, int64_t memory_row)
      : rows_(rows),
        dim_(rows.masks ? dim : rows.kept),
        slot_(chunk.slot),
        slot_scales_(slot_scales<T>(rows, chunk)),
        reader_(rows, *chunk.part, chunk.head, chunk.slot, dim, !kKeys, memory, memory_row) {}

  int64_t dim() const { return dim_; }

  void read(int64_t count, float* out, float* scales) {
    reader_.unpack(count, out);
    for (int64_t t = 0; t < count; t += Vec::width) {
      store(scales + t, slot_scales_ ? load_up_to(slot_scales_ + t, count - t) : broadcast(1.0f));
    }
    if (kKeys && rows_.scaling == WINNOW_GROUPED) {
      for (int64_t i = 0; i < count; ++i) scale(slot_ + i, out + i * dim_);
    }
    if (slot_scales_) slot_scales_ += count;
    slot_ += count;
  }

 private:
  // Keys whose scales and zeros are of groups of slots. The last vector may end in the next row, which is scaled after
  // this one: only its own channels are written.
  void scale(int64_t slot, float* row) const {
    const int64_t group = slot / kScaleGroup * dim_;
    const T *scales = numbers(rows_.scales) + group, *zeros = numbers(rows_.zeros) + group;
    int64_t d = 0;
    for (; d + Vec::width <= dim_; d += Vec::width) {
      store(row + d, fma(load(scales + d), load(row + d), load(zeros + d)));
    }
    if (d == dim_) return;
    const int64_t rest = dim_ - d;
    store_first(row + d, fma(load_first(scales + d, rest), load_first(row + d, rest), load_first(zeros + d, rest)), rest);
  }

  static const T* numbers(const void* p) { return static_cast<const T*>(p); }

  const winnow_rows& rows_;
  int64_t dim_;
  int64_t slot_;
  const T* slot_scales_;
  RowReader<T> reader_;
};

// The next `count` tokens of a chunk; logits are scaled with their keys.
template <class Keys, class Values>
inline void read_block(const Shape& shape, const MatrixScratch& matrix, Keys& keys, Values& values, int64_t count) {
  keys.read(count, matrix.keys, matrix.key_scales);
  values.read(count, matrix.values, matrix.value_scales);
  for (int64_t t = 0; t < count; t += Vec::width) {
    store(matrix.key_scales + t, broadcast(shape.scaling) * load(matrix.key_scales + t));
  }
}

}  // namespace
}  // namespace winnow
