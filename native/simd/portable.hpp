// Eight fp32 lanes for any machine: the compiler splits the vector type into what the baseline has (two
// registers of NEON or SSE2). Internal linkage throughout, see simd/vec.hpp.
#pragma once

#include <cstdint>
#include <cstring>

#include "simd/element.hpp"

namespace winnow {
namespace {

struct Vec {
  static constexpr int width = 8;
  typedef float Lanes __attribute__((vector_size(32)));
  Lanes v;
};

typedef uint32_t Bits __attribute__((vector_size(32)));
typedef uint16_t HalfBits __attribute__((vector_size(16)));

inline Bits bits_of(Vec a) { return reinterpret_cast<Bits>(a.v); }
inline Vec vec_of(Bits b) { return {reinterpret_cast<Vec::Lanes>(b)}; }
inline Bits choose(Bits mask, Bits yes, Bits no) { return (mask & yes) | (~mask & no); }

inline Vec broadcast(float x) { return {Vec::Lanes{} + x}; }

// Left to the compiler.
inline void load_once(Vec&) {}

inline Vec widen(Bf16, Bits bits) { return vec_of(bits << 16); }

// The exponent is rebased by a multiplication, which also makes subnormals come out right.
inline Vec widen(Fp16, Bits bits) {
  const Vec rebased{vec_of((bits & 0x7fff) << 13).v * 0x1p112f};
  const Bits infinite = reinterpret_cast<Bits>((bits & 0x7c00) == 0x7c00);
  return vec_of(bits_of(rebased) | (infinite & 0x7f800000) | ((bits & 0x8000) << 16));
}

inline Vec load(const float* p) {
  Vec a;
  std::memcpy(&a.v, p, sizeof a.v);
  return a;
}
template <class Half>
inline Vec load(const Half* p) {
  HalfBits bits;
  std::memcpy(&bits, p, sizeof bits);
  return widen(Half{}, __builtin_convertvector(bits, Bits));
}

typedef int32_t Ints __attribute__((vector_size(32)));
typedef uint8_t ByteBits __attribute__((vector_size(8)));

inline Bits eight_bytes(const void* p) {
  ByteBits bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(bytes, Bits);
}
inline Vec signed_field(Bits high, int bits) {
  return {__builtin_convertvector(reinterpret_cast<Ints>(high) >> (32 - bits), Vec::Lanes)};
}
inline Vec load(const Int8* p) { return signed_field(eight_bytes(p) << 24, 8); }
inline Vec load(const Uint8* p) { return {__builtin_convertvector(eight_bytes(p), Vec::Lanes)}; }

// On little-endian machines dealt out alternately, see simd/avx512.hpp; elsewhere the two halves change places, which
// is as good.
inline void load_pair(const Bf16* p, Vec& a, Vec& b) {
  Bits pairs;
  std::memcpy(&pairs, p, sizeof pairs);
  a = vec_of(pairs << 16);
  b = vec_of(pairs & 0xffff0000);
}

// The first n < width lanes; the others are zero and their memory is not touched.
template <class T>
inline Vec load_first(const T* p, int64_t n) {
  T padded[Vec::width] = {};
  std::memcpy(padded, p, static_cast<size_t>(n) * sizeof(T));
  return load(padded);
}

// Numbers of kBits bits, one from each of the first bytes at p: the kField-th, counted from the lowest bits.
template <int kBits, bool kSigned, int kField>
inline Vec load_field(const uint8_t* p) {
  const Bits high = eight_bytes(p) << (32 - kBits - kField * kBits);
  return kSigned ? signed_field(high, kBits) : Vec{__builtin_convertvector(high >> (32 - kBits), Vec::Lanes)};
}

// Numbers of 1 bit from kFirst on, one from each of the 8 bytes at p.
template <bool kSigned, int kFirst>
inline Vec load_flags(const uint8_t* p) {
  return load_field<1, kSigned, kFirst / 8>(p);
}

// The first lanes of `values` go, in their order, where `mask` is set; the other lanes are those of `fill`.
inline Vec expand(Vec fill, uint32_t mask, Vec values) {
  for (int lane = 0, rank = 0; lane < Vec::width; ++lane) {
    if (mask >> lane & 1) fill.v[lane] = values.v[rank++];
  }
  return fill;
}

// Lanes in memory whose bits, as a signed number, are above `bits`.
inline uint32_t lanes_above(const float* p, int32_t bits) {
  Ints lanes;
  std::memcpy(&lanes, p, sizeof lanes);
  const Ints flags = (lanes > bits) & Ints{1, 2, 4, 8, 16, 32, 64, 128};
  int32_t found = 0;
  for (int i = 0; i < Vec::width; ++i) found |= flags[i];
  return static_cast<uint32_t>(found);
}

// Lanes change sign where `mask` is set.
inline Vec negate_where(uint32_t mask, Vec a) {
  for (int lane = 0; lane < Vec::width; ++lane) {
    if (mask >> lane & 1) a.v[lane] = -a.v[lane];
  }
  return a;
}

// Lane i is lane i ^ kApart.
template <int kApart>
inline Vec exchange(Vec a) {
  Vec b;
  for (int lane = 0; lane < Vec::width; ++lane) b.v[lane] = a.v[lane ^ kApart];
  return b;
}

// The lanes of a and then b, dealt out: those with an even index, and the others.
inline void deal_lanes(Vec& a, Vec& b) {
  const Vec first = a, second = b;
  constexpr int kHalf = Vec::width / 2;
  for (int lane = 0; lane < kHalf; ++lane) {
    a.v[lane] = first.v[2 * lane];
    a.v[kHalf + lane] = second.v[2 * lane];
    b.v[lane] = first.v[2 * lane + 1];
    b.v[kHalf + lane] = second.v[2 * lane + 1];
  }
}

// Each lane rounded to bf16, in the upper 16 of its 32 bits.
inline Bits round_to_bf16(Vec a) {
  const Bits bits = bits_of(a);
  const Bits rounded = bits + 0x7fff + ((bits >> 16) & 1);
  return choose(reinterpret_cast<Bits>(a.v != a.v), Bits{} + 0x7fc00000, rounded);
}
inline Bits narrow(Bf16, Vec a) { return round_to_bf16(a) >> 16; }

// Adding a power of two just above the value rounds it to the fp16 grid; the grid ends at 2^-24 and 65504.
inline Bits narrow(Fp16, Vec a) {
  const Bits sign = (bits_of(a) >> 16) & 0x8000;
  const Bits magnitude = bits_of(a) & 0x7fffffff;
  const Bits normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const Vec shifted{vec_of(magnitude).v + 0.5f};
  const Bits tiny = bits_of(shifted) - 0x3f000000;
  const Bits finite = choose(reinterpret_cast<Bits>(magnitude < (113u << 23)), tiny, normal);
  const Bits infinite = choose(reinterpret_cast<Bits>(magnitude > 0x7f800000), Bits{} + 0x7e00, Bits{} + 0x7c00);
  return sign | choose(reinterpret_cast<Bits>(magnitude >= 0x477ff000), infinite, finite);
}

inline void store(float* p, Vec a) { std::memcpy(p, &a.v, sizeof a.v); }
template <class Half>
inline void store(Half* p, Vec a) {
  const HalfBits bits = __builtin_convertvector(narrow(Half{}, a), HalfBits);
  std::memcpy(p, &bits, sizeof bits);
}
inline void store_pair(Bf16* p, Vec a, Vec b) {
  const Bits pairs = (round_to_bf16(a) >> 16) | (round_to_bf16(b) & 0xffff0000);
  std::memcpy(p, &pairs, sizeof pairs);
}

template <class T>
inline void store_first(T* p, Vec a, int64_t n) {
  T padded[Vec::width];
  store(padded, a);
  std::memcpy(p, padded, static_cast<size_t>(n) * sizeof(T));
}

inline Vec operator+(Vec a, Vec b) { return {a.v + b.v}; }
inline Vec operator-(Vec a, Vec b) { return {a.v - b.v}; }
inline Vec operator*(Vec a, Vec b) { return {a.v * b.v}; }
inline Vec operator/(Vec a, Vec b) { return {a.v / b.v}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {a.v * b.v + c.v}; }
inline Vec max(Vec a, Vec b) { return {a.v > b.v ? a.v : b.v}; }

// Adding and subtracting 1.5·2^23 drops the fraction of any |a| < 2^22.
inline Vec round_nearest(Vec a) { return {a.v + 0x1.8p23f - 0x1.8p23f}; }

// a·2^n for whole n in -126..127.
inline Vec scale_by_power(Vec a, Vec n) {
  const Ints exponent = __builtin_convertvector(n.v, Ints) + 127;
  return {a.v * reinterpret_cast<Vec::Lanes>(exponent << 23)};
}

// a < b ? yes : no
inline Vec if_less(Vec a, Vec b, Vec yes, Vec no) { return {a.v < b.v ? yes.v : no.v}; }

inline float lane_max(Vec a) {
  float largest = a.v[0];
  for (int i = 1; i < Vec::width; ++i) largest = a.v[i] > largest ? a.v[i] : largest;
  return largest;
}

inline float lane_sum(Vec a) {
  return ((a.v[0] + a.v[1]) + (a.v[2] + a.v[3])) + ((a.v[4] + a.v[5]) + (a.v[6] + a.v[7]));
}

// Lane i is the sum of rows[i].
inline Vec row_sums(const Vec (&rows)[8]) {
  Vec sums;
  for (int i = 0; i < Vec::width; ++i) sums.v[i] = lane_sum(rows[i]);
  return sums;
}

}  // namespace
}  // namespace winnow
