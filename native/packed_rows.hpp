// Rows of packed keys or values -> fp32, a few at a time. Include after a vec_*.hpp.
//
// Rows are unpacked in whole vectors: what is written behind a row is the next row's, or slack. What is read behind
// a row is the next row's too; near the end of an array a copy of the row is read instead.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "bits.hpp"
#include "contract.hpp"
#include "packed_fill.hpp"
#include "prefetch.hpp"
#include "unroll.hpp"

namespace winnow {
namespace {

constexpr int64_t kGroup = 32;       // channels of a value, or slots of keys, that share a scale and a zero
constexpr int64_t kBlockBytes = 16;  // of a block of numbers of 4 or 2 bits

inline int64_t bytes_of_bits(int64_t bits) { return (bits + 7) / 8; }

// Bytes of a row of `numbers`.
inline int64_t bytes_of_row(const winnow_rows& rows, int64_t numbers, int64_t element_bytes) {
  return rows.bits == 16 ? numbers * element_bytes : bytes_of_bits(numbers * rows.bits);
}

// A row that may be read beyond its end: itself, or a copy where the array ends first. What a mask promises and the
// array does not have is zero.
inline const uint8_t* readable(const uint8_t* row, int64_t bytes, const uint8_t* end, void* copy) {
  const int64_t rest = end - row;
  if (rest >= bytes + kRowSlack) return row;
  const int64_t used = rest < 0 ? 0 : rest < bytes ? rest : bytes;
  if (used > 0) std::memcpy(copy, row, static_cast<size_t>(used));
  std::memset(static_cast<char*>(copy) + used, 0, static_cast<size_t>(bytes - used + kRowSlack));
  return static_cast<const uint8_t*>(copy);
}

// Numbers of kBits bits -> floats, in their order. Writes up to 47 floats too many.
template <int kBits, bool kSigned>
inline void unpack_numbers(const uint8_t* row, int64_t count, float* out) {
  if constexpr (kBits == 8) {
    using Number = std::conditional_t<kSigned, Int8, Uint8>;
    for (int64_t i = 0; i < count; i += Vec::width) store(out + i, load(reinterpret_cast<const Number*>(row + i)));
  } else {
    constexpr int kFields = 8 / kBits;
    // Field by field: what one writes too many, the next overwrites.
    const auto block = [&](int64_t bytes) {
      unroll<kFields>([&](auto field) {
        for (int64_t i = 0; i < bytes; i += Vec::width) {
          store(out + field * bytes + i, load_field<kBits, kSigned, decltype(field)::value>(row + i));
        }
      });
    };
    for (; count >= kFields * kBlockBytes; count -= kFields * kBlockBytes) {
      block(kBlockBytes);
      row += kBlockBytes;
      out += kFields * kBlockBytes;
    }
    if (count > 0) block((count + kFields - 1) / kFields);
  }
}

template <bool kSigned>
inline void unpack_numbers(int32_t bits, const uint8_t* row, int64_t count, float* out) {
  switch (bits) {
    case 8: return unpack_numbers<8, kSigned>(row, count, out);
    case 4: return unpack_numbers<4, kSigned>(row, count, out);
    default: return unpack_numbers<2, kSigned>(row, count, out);
  }
}

// out[d] = zeros[g] + scales[g]·out[d] for the channels d of group g
template <class T>
inline void scale_groups(const T* scales, const T* zeros, int64_t count, float* out) {
  alignas(64) float scale[Vec::width], zero[Vec::width];
  const int64_t groups = (count + kGroup - 1) / kGroup;
  for (int64_t group = 0; group < groups; ++group, out += kGroup) {
    const int64_t lane = group % Vec::width;
    if (lane == 0) {
      const int64_t rest = groups - group < Vec::width ? groups - group : Vec::width;
      store(scale, load_first(scales + group, rest));
      store(zero, load_first(zeros + group, rest));
    }
    unroll<kGroup / Vec::width>([&](auto i) {
      float* at = out + i * Vec::width;
      store(at, fma(broadcast(scale[lane]), load(at), broadcast(zero[lane])));
    });
  }
}

// Unpacks consecutive rows of slots of one head. Scales of slots, and those of groups of slots, are left to the
// caller where all channels of a row are there.
template <class T>
class RowReader {
 public:
  // `rows` hold the slots of a part, `dim` channels each; `memory` is for kPackedRows rows.
  RowReader(const winnow_rows& rows, const winnow_part& part, int64_t head, int64_t slot, int64_t dim,
            bool grouped_channels, float* memory, int64_t memory_row)
      : rows_(rows),
        dim_(rows.masks ? dim : rows.kept),
        slot_(slot),
        grouped_channels_(grouped_channels && rows.scaling == WINNOW_GROUPED),
        data_end_(bytes_at(rows.data) + rows.data_bytes) {
    kept_ = memory;
    data_copy_ = memory + memory_row;
    data_ = bytes_at(rows.data);
    if (!rows.masks) {
      data_ += slot * rows.row_bytes;
      return;
    }
    mask_bytes_ = bytes_of_bits(dim);
    mask_end_ = rows.masks + part.slots * mask_bytes_;
    mask_copy_ = memory + 2 * memory_row;
    sign_copy_ = memory + 3 * memory_row;
    fill_ = Fill<T>(rows, head, dim, memory + 4 * memory_row, memory + 5 * memory_row);
    find_masked_row(slot);
  }

  // The next `count` rows, one after another without gaps.
  void unpack(int64_t count, float* out) {
    const bool open = rows_.masks && open_ahead(count);
    for (int64_t i = 0; i < count; ++i, ++slot_, out += dim_) {
      if (!rows_.masks) {
        unpack_whole(out);
      } else if (open) {
        unpack_masked<true>(out);
      } else {
        unpack_masked<false>(out);
      }
    }
  }

 private:
  static const uint8_t* bytes_at(const void* p) { return static_cast<const uint8_t*>(p); }
  static const T* elements(const void* p) { return static_cast<const T*>(p); }

  // Where rows differ in length, the beginning of every 32nd is known.
  void find_masked_row(int64_t slot) {
    if (!rows_.starts) {
      data_ += slot * rows_.row_bytes;
      signs_ = rows_.signs + slot * rows_.sign_row_bytes;
      return;
    }
    const int64_t block = slot / kGroup;
    data_ += rows_.starts[2 * block];
    signs_ = rows_.signs + rows_.starts[2 * block + 1];
    for (int64_t before = block * kGroup; before < slot; ++before) step(count_kept(rows_.masks + before * mask_bytes_));
  }

  int64_t count_kept(const uint8_t* mask) const {
    int64_t kept = 0, byte = 0;
    for (; byte + 8 <= mask_bytes_; byte += 8) kept += count_bits(load_word(mask + byte) & first_bits(dim_ - 8 * byte));
    for (; byte < mask_bytes_; ++byte) kept += count_bits(mask[byte] & first_bits(dim_ - 8 * byte));
    return kept;
  }

  // Past a row that keeps `kept` entries, which matters only where rows differ in length.
  void step(int64_t kept) {
    data_ += rows_.starts ? bytes_of_row(rows_, kept, sizeof(T)) : rows_.row_bytes;
    signs_ += rows_.starts ? bytes_of_bits(dim_ - kept) : rows_.sign_row_bytes;
  }

  // The lines of a row to come.
  void prefetch_row(int64_t bytes) const {
    const char* ahead = reinterpret_cast<const char*>(data_) + kPrefetchBytes;
    prefetch(ahead);
    for (int64_t byte = kLine; byte < bytes; byte += kLine) prefetch(ahead + byte);
  }

  void unpack_whole(float* out) {
    const int64_t bytes = bytes_of_row(rows_, dim_, sizeof(T));
    const uint8_t* row = readable(data_, bytes, data_end_, data_copy_);
    prefetch_row(bytes);
    data_ += bytes;
    if (rows_.bits == 16) return convert(row, dim_, out);
    if (rows_.scaling == WINNOW_PER_SLOT) return unpack_numbers<true>(rows_.bits, row, dim_, out);
    unpack_numbers<false>(rows_.bits, row, dim_, out);
    if (!grouped_channels_) return;
    const int64_t first = slot_ * ((dim_ + kGroup - 1) / kGroup);
    scale_groups(elements(rows_.scales) + first, elements(rows_.zeros) + first, dim_, out);
  }

  static void convert(const uint8_t* row, int64_t count, float* out) {
    for (int64_t d = 0; d < count; d += Vec::width) store(out + d, load(elements(row) + d));
  }

  // Whether the next rows may be read beyond their ends, whatever their masks say.
  bool open_ahead(int64_t count) const {
    const int64_t most = bytes_of_row(rows_, dim_, sizeof(T)), most_signs = bytes_of_bits(dim_);
    const int64_t data = count * (rows_.starts ? most : rows_.row_bytes) + most;
    const int64_t signs = count * (rows_.starts ? most_signs : rows_.sign_row_bytes) + most_signs;
    return data_end_ - data_ >= data + kRowSlack &&
           (!rows_.signs || rows_.signs + rows_.signs_bytes - signs_ >= signs + kRowSlack) &&
           mask_end_ - rows_.masks >= (slot_ + count) * mask_bytes_ + kRowSlack;
  }

  // kOpen: see open_ahead.
  template <bool kOpen>
  void unpack_masked(float* out) {
    const uint8_t *mask = rows_.masks + slot_ * mask_bytes_, *row = data_, *signs = rows_.signs ? signs_ : nullptr;
    const int64_t kept = kOpen && !rows_.starts && rows_.bits >= 8 ? 0 : count_kept(mask);
    prefetch_row(rows_.row_bytes);
    if constexpr (!kOpen) {
      row = readable(row, bytes_of_row(rows_, kept, sizeof(T)), data_end_, data_copy_);
      if (signs) signs = readable(signs, bytes_of_bits(dim_ - kept), rows_.signs + rows_.signs_bytes, sign_copy_);
      mask = readable(mask, mask_bytes_, mask_end_, mask_copy_);
    }
    fill_.begin(slot_, mask, mask_bytes_);
    if (rows_.bits == 16) {
      expand_row<false>(elements(row), mask, signs, broadcast(1.0f), out);
    } else {
      const Vec scale = broadcast(to_float(elements(rows_.scales)[slot_]));
      if (rows_.bits == 8) {
        expand_row<true>(reinterpret_cast<const Int8*>(row), mask, signs, scale, out);
      } else {
        unpack_numbers<true>(rows_.bits, row, kept, kept_);
        expand_row<true>(kept_, mask, signs, scale, out);
      }
    }
    step(kept);
  }

  // Kept entries go to their channels, between the fill.
  template <bool kScaled, class Number>
  void expand_row(const Number* kept, const uint8_t* mask, const uint8_t* signs, Vec scale, float* out) const {
    int64_t pruned = 0, d = 0;
    const Entry fill = fill_.entry();
    const auto word = [&](int64_t channels) {
      const uint64_t valid = first_bits(channels), bits = load_word(mask + d / 8) & valid, gone = ~bits & valid;
      const uint64_t negative = signs ? deposit(bits_at(signs, pruned), gone) : 0;
      pruned += count_bits(gone);
      return Word{bits, negative};
    };
    for (; d + 64 <= dim_; d += 64) {
      const Word here = word(64);
      unroll<64 / Vec::width>([&](auto i) { expand_lanes<kScaled>(here, i * Vec::width, kept, fill, d, scale, out); });
      kept += count_bits(here.bits);
    }
    if (d < dim_) {
      const Word here = word(dim_ - d);
      for (int64_t lane = 0; d + lane < dim_; lane += Vec::width) {
        expand_lanes<kScaled>(here, lane, kept, fill, d, scale, out);
      }
    }
  }

  // 64 channels: which are kept, and which of the others are negative.
  struct Word {
    uint64_t bits, negative;
  };

  // One vector of the channels from d on; `kept` begins at d, whatever the lane.
  template <bool kScaled, class Number>
  __attribute__((always_inline)) static void expand_lanes(const Word& word, int64_t lane, const Number* kept,
                                                          const Entry& fill, int64_t d, Vec scale, float* out) {
    const Number* from = kept + count_bits(word.bits & first_bits(lane));
    const Vec entry = negate_where(static_cast<uint32_t>(word.negative >> lane), fill.at(d + lane));
    Vec values = load(from);
    if constexpr (kScaled) values = values * scale;
    store(out + d + lane, expand(entry, static_cast<uint32_t>(word.bits >> lane), values));
  }

  const winnow_rows& rows_;
  int64_t dim_;   // entries of a row as unpacked
  int64_t slot_;  // the next row's
  bool grouped_channels_;
  const uint8_t* data_;             // of the next row
  const uint8_t* signs_ = nullptr;  // of the next row
  const uint8_t* data_end_;
  const uint8_t* mask_end_ = nullptr;
  int64_t mask_bytes_ = 0;
  Fill<T> fill_;
  float *kept_, *data_copy_, *mask_copy_ = nullptr, *sign_copy_ = nullptr;
};

}  // namespace
}  // namespace winnow
