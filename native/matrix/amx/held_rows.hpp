// Rows of numbers that bf16 holds: where they lie, or integers that are unpacked, a block of tokens at a time.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "attend/contract.hpp"
#include "matrix/amx/next_rows.hpp"
#include "matrix/amx/sizes.hpp"
#include "packed/amx/levels.hpp"
#include "packed/amx/numbers.hpp"
#include "packed/format.hpp"
#include "packed/slot_scales.hpp"
#include "simd/element.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Where each number of a vector lies in the order of Levels.
struct ChannelOrder {
  alignas(64) uint16_t from[kLevels];
};

constexpr ChannelOrder channel_order() {
  ChannelOrder order{};
  for (int i = 0; i < kLevels; ++i) order.from[i] = static_cast<uint16_t>(i % 2 * kLevels / 2 + i / 2);
  return order;
}

// Integers of 64 channels -> bf16, in their order.
template <int kBits>
class HeldIntegers {
 public:
  HeldIntegers() : levels_(true), order_(_mm512_load_si512(kOrder.from)) {}

  void unpack(const uint8_t* row, int64_t block, int64_t dim, Bf16* to) const {
    unroll<2>([&](auto half) {
      const __m512i numbers = levels_.template take<half>(row, block, dim);
      _mm512_storeu_si512(to + half * kLevels, _mm512_permutexvar_epi16(order_, numbers));
    });
  }

 private:
  static constexpr ChannelOrder kOrder = channel_order();

  Levels<kBits> levels_;
  __m512i order_;
};

template <>
class HeldIntegers<8> {
 public:
  void unpack(const uint8_t* row, int64_t block, int64_t, Bf16* to) const {
    unroll<2>([&](auto half) {
      const auto lanes = [&](int64_t first) {
        return load(reinterpret_cast<const Int8*>(row + block * kRowNumbers + half * kLevels + first)).v;
      };
      const __m512bh numbers = _mm512_cvtne2ps_pbh(lanes(Vec::width), lanes(0));
      std::memcpy(to + half * kLevels, &numbers, sizeof numbers);
    });
  }
};

// True where rows of `dim` channels are bf16 and fill tiles.
template <class T>
bool are_held(int64_t dim) {
  return std::is_same_v<T, Bf16> && dim % kTileChannels == 0;
}

// The same for packed rows, or for integers that bf16 holds.
template <class T>
bool are_held(const winnow_rows& rows) {
  if (rows.masks) return false;
  if (rows.bits == 16) return are_held<T>(rows.kept);
  return rows.scaling == WINNOW_PER_SLOT && rows.kept % kRowNumbers == 0;
}

// Consecutive rows of a chunk.
template <class T>
class HeldRows {
 public:
  // Dense rows.
  HeldRows(const void* rows, int64_t dim)
      : dim_(are_held<T>(dim) ? dim : 0),
        bits_(16),
        row_bytes_(dim * static_cast<int64_t>(sizeof(T))),
        at_(bytes_at(rows)) {}

  // Packed rows.
  HeldRows(const winnow_rows& rows, const Chunk& chunk)
      : dim_(are_held<T>(rows) ? rows.kept : 0),
        bits_(rows.bits),
        row_bytes_(rows.row_bytes),
        at_(bytes_at(rows.data) + chunk.slot * rows.row_bytes),
        scales_(slot_scales<T>(rows, chunk)) {}

  // False where bf16 does not hold them, or they do not fill tiles.
  bool any() const { return dim_ > 0; }
  int64_t dim() const { return dim_; }
  // Whether slots have scales that are left to logits or weights, of whatever numbers.
  bool scaled() const { return scales_ != nullptr; }
  // The next `count` rows in memory.
  Bytes to_come(int64_t count) const { return {reinterpret_cast<const char*>(at_), any() ? count * row_bytes_ : 0}; }

  // The next `count` rows, one after another; in `memory` if they have to be unpacked, or if `padding` rows behind the
  // last have to be there.
  const Bf16* next(int64_t count, int64_t padding, Bf16* memory, float* scales) {
    const uint8_t* rows = at_;
    at_ += count * row_bytes_;
    for (int64_t t = 0; t < count; t += Vec::width) {
      store(scales + t, scales_ ? load_up_to(scales_ + t, count - t) : broadcast(1.0f));
    }
    if (scales_) scales_ += count;
    if (bits_ < 16) {
      unpack(rows, count, memory);
    } else if (padding == 0) {
      return reinterpret_cast<const Bf16*>(rows);
    } else {
      std::memcpy(memory, rows, static_cast<size_t>(count * row_bytes_));
    }
    std::memset(memory + count * dim_, 0, static_cast<size_t>(padding * dim_) * sizeof(Bf16));
    return memory;
  }

 private:
  void unpack(const uint8_t* rows, int64_t count, Bf16* to) const {
    for_width(bits_, [&](auto width) {
      const HeldIntegers<decltype(width)::value> integers;
      for (int64_t t = 0; t < count; ++t, rows += row_bytes_, to += dim_) {
        for (int64_t block = 0; block < dim_ / kRowNumbers; ++block) {
          integers.unpack(rows, block, dim_, to + block * kRowNumbers);
        }
      }
    });
  }

  int64_t dim_;
  int32_t bits_;
  int64_t row_bytes_;
  const uint8_t* at_;
  const T* scales_ = nullptr;
};

}  // namespace
}  // namespace winnow
