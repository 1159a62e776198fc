// Dot products in int8, for AVX-512: packed integers as bytes, with queries or weights in int16 (int16_products.hpp).
//
// Field f of a block (see bits.py) are the numbers 16·f .. 16·f + 15 of the block. Numbers are taken as unsigned ones,
// since the machine multiplies unsigned bytes with signed ones: signed numbers are larger by an offset.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <type_traits>

#include "packed/avx512/int16_products.hpp"
#include "packed/format.hpp"
#include "simd/prefetch.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

constexpr float kMostInt16 = 127 * 256 + 127;

// A block of 16 bytes.
inline __m128i load_block(const char* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

// The same of a plane of 1 bit, whose blocks have 8 bytes: these twice, so that bit 2·f of byte i is that of number i
// of field f.
inline __m128i load_flags(const char* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm_unpacklo_epi64(bytes, _mm_srli_epi16(bytes, 1));
}

// Numbers of one plane: a block is a load.
template <int kBits>
struct Plane {
  static constexpr int kFields = 8 / kBits, kLoads = 1;
  static constexpr int kOffset = 1 << (kBits - 1);  // of numbers whose sign bits are flipped
  static constexpr int kSigns = kBits == 8 ? 0x80 : kBits == 4 ? 0x88 : 0xaa;  // of the bytes of the last load
  static constexpr int64_t kBytes = kBlockBytes, kNumbers = 16 * kFields;      // of a block

  // The byte of a row of `dim` numbers at which a load of a block begins.
  static int64_t place(int64_t block, int, int64_t) { return block * kBlockBytes; }

  // A block of a row, and one field of numbers. Not by a single vpternlog, which would take turns with the products.
  template <int kLoad>
  static __m128i load(const char* p) {
    return load_block(p);
  }
  template <int kField>
  static __m512i field(const __m512i (&lifted)[kLoads]) {
    if constexpr (kBits == 8) return lifted[0];
    const __m512i mask = _mm512_set1_epi8((1 << kBits) - 1);
    return _mm512_and_si512(_mm512_srli_epi16(lifted[0], kField * kBits), mask);
  }
};

// Numbers of two planes: a block is the loads of the lower one, and one of the higher, which has the signs.
template <int kBits>
struct TwoPlanes {
  static constexpr int kLow = low_bits(kBits), kHigh = kBits - kLow, kLowLoads = kLow / 2;
  static constexpr int kFields = 4, kLoads = kLowLoads + 1, kPerByte = 8 / kLow;
  static constexpr int kOffset = 1 << (kBits - 1), kSigns = kHigh == 1 ? 0xff : 0xaa;
  static constexpr int64_t kLowBytes = kLowLoads * kBlockBytes, kHighBytes = block_bytes(kHigh);
  static constexpr int64_t kBytes = kLowBytes + kHighBytes, kNumbers = 16 * kFields;

  static int64_t place(int64_t block, int load, int64_t dim) {
    return load < kLowLoads ? block * kLowBytes + load * kBlockBytes : dim * kLow / 8 + block * kHighBytes;
  }
  template <int kLoad>
  static __m128i load(const char* p) {
    return kLoad == kLowLoads && kHigh == 1 ? load_flags(p) : load_block(p);
  }
  template <int kField>
  static __m512i field(const __m512i (&lifted)[kLoads]) {
    return joined<kField>(lifted[kField / kPerByte], lifted[kLowLoads]);
  }

  // Two fields from kFirst on as a form of its own: with half of the sums, so that registers hold those of twice as many
  // queries.
  template <int kFirst>
  struct Half {
    static constexpr int kFields = 2, kLoads = 2, kOffset = TwoPlanes::kOffset, kSigns = TwoPlanes::kSigns;
    static constexpr int64_t kBytes = TwoPlanes::kBytes, kNumbers = TwoPlanes::kNumbers;

    static constexpr int whole(int load) { return load == 0 ? kFirst / kPerByte : kLowLoads; }
    static int64_t place(int64_t block, int load, int64_t dim) { return TwoPlanes::place(block, whole(load), dim); }
    template <int kLoad>
    static __m128i load(const char* p) {
      return TwoPlanes::load<whole(kLoad)>(p);
    }
    template <int kField>
    static __m512i field(const __m512i (&lifted)[kLoads]) {
      return joined<kFirst + kField>(lifted[0], lifted[1]);
    }
  };

 private:
  // The low bits of a field, of one load, and the high ones, of another.
  template <int kField>
  static __m512i joined(__m512i low_load, __m512i high_load) {
    constexpr int kShift = 2 * kField - kLow;  // of bits 2·kField to those from kLow on
    const __m512i low_mask = _mm512_set1_epi8((1 << kLow) - 1);
    const __m512i high_mask = _mm512_set1_epi8(((1 << kHigh) - 1) << kLow);
    const __m512i low = _mm512_srli_epi16(low_load, kField % kPerByte * kLow);
    const __m512i high = kShift < 0 ? _mm512_slli_epi16(high_load, kShift < 0 ? -kShift : 0)
                                    : _mm512_srli_epi16(high_load, kShift < 0 ? 0 : kShift);
    return _mm512_or_si512(_mm512_and_si512(low, low_mask), _mm512_and_si512(high, high_mask));
  }
};

template <int kBits>
using Numbers = std::conditional_t<low_bits(kBits) == kBits, Plane<kBits>, TwoPlanes<kBits>>;

// What makes unsigned numbers of a form of all numbers, and by how much they are larger: whether they are signed is not
// known before, since each further form of the functions below takes the compiler seconds.
template <class Form>
struct Lift {
  __m512i signs;
  int32_t offset;

  explicit Lift(bool is_signed)
      : signs(_mm512_set1_epi8(static_cast<char>(is_signed ? Form::kSigns : 0))),
        offset(is_signed ? Form::kOffset : 0) {}

  template <int kLoad>
  __m512i operator()(__m512i bytes, Count<kLoad>) const {
    return kLoad == Form::kLoads - 1 ? _mm512_xor_si512(bytes, signs) : bytes;
  }
};

// Channels that scale groups are multiples of: two fields of a block, or two blocks of one field.
constexpr int64_t kGranule = kScaleGroup;

// Sixteen floats as int16, given a factor that makes the largest kMostInt16.
inline __m512i to_int16(Vec numbers, Vec factor) { return _mm512_cvtps_epi32((numbers * factor).v); }

// Numbers that are all smaller than this count as zeros: the inverse of their scale could be infinite. Weights are
// relative to 1.
constexpr float kLeastNumber = 1e-30f;

// The number that 1 in int16 stands for, where the largest number is `most`; and its inverse, where there is one.
inline Vec int16_scale(Vec most) { return most * broadcast(1.0f / kMostInt16); }
inline Vec inverse_int16_scale(Vec most) {
  return if_less(broadcast(kLeastNumber), most, broadcast(kMostInt16) / most, broadcast(0.0f));
}

}  // namespace
}  // namespace winnow
