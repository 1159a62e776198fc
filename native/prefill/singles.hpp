// Numbers of a prompt that meet one by one, in fp32.
#pragma once

#include <cstring>

#include "prefill/lanes.hpp"
#include "simd/math.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Rows of numbers, `stride` apart, that lanes are multiplied by.
struct FloatRows {
  const float* data;
  int64_t stride;
};

// Of type T, made fp32 where they are not.
template <class T>
struct Singles {
  static constexpr int64_t kTogether = 1;
  static constexpr float kUnit = 1.0f;  // of logits

  static Vec add(Vec sum, Vec number, Vec lanes) { return fma(number, lanes, sum); }

  // A query times the scaling, down its lane.
  static void gather(const T* from, int64_t dim, float scaling, float* lane) {
    float numbers[Vec::width];
    for (int64_t d = 0; d < dim; d += Vec::width) {
      store(numbers, load_up_to(from + d, dim - d) * broadcast(scaling));
      for (int64_t i = 0; i < least(Vec::width, dim - d); ++i) lane[(d + i) * kLanes] = numbers[i];
    }
  }

  // Products of keys and queries -> logits, in units.
  static Vec logits(Vec products, float) { return products; }

  // Keys of `count` tokens: where they lie if they are fp32 and fill whole tiles, else copied, with zeros for tokens that
  // are not there.
  static FloatRows keys(const T* from, int64_t stride, int64_t dim, int64_t count, float* copies) {
    if constexpr (sizeof(T) == sizeof(float)) {
      if (count % kTileRows == 0) return {reinterpret_cast<const float*>(from), stride};
    }
    return copied(from, stride, dim, count, copies);
  }

  // Values of `count` tokens: where they lie if they are fp32 and fill whole tiles, else copied, with zeros for channels
  // that are not there.
  static FloatRows values(const T* from, int64_t stride, int64_t dim, int64_t count, float* copies) {
    if constexpr (sizeof(T) == sizeof(float)) {
      if (dim % kTileRows == 0) return {reinterpret_cast<const float*>(from), stride};
    }
    return copied(from, stride, dim, count, copies);
  }

  static FloatRows copied(const T* from, int64_t stride, int64_t dim, int64_t count, float* copies) {
    const int64_t width = round_up(dim, 16);
    for (int64_t t = 0; t < count; ++t) {
      for (int64_t d = 0; d < width; d += Vec::width) {
        const Vec numbers = d < dim ? load_up_to(from + t * stride + d, dim - d) : broadcast(0.0f);
        store(copies + t * width + d, numbers);
      }
    }
    const int64_t padded = round_up(count, kTileRows);
    std::memset(copies + count * width, 0, static_cast<size_t>((padded - count) * width) * sizeof(float));
    return {copies, width};
  }

  // Logits of `tokens` tokens -> weights relative to `shift`, which may take their place; returns the sum with them.
  static Lanes weigh(const float* logits, int64_t tokens, const Lanes& shift, float* weights, Lanes sum) {
    for (int64_t t = 0; t < tokens; ++t) {
      const Lanes weight = combine(load_lanes(logits + t * kLanes), shift, [](Vec a, Vec b) { return exp(a - b); });
      store_lanes(weights + t * kLanes, weight);
      sum = combine(sum, weight, [](Vec a, Vec b) { return a + b; });
    }
    return sum;
  }

  // Those of one token.
  static Lanes weight(const float* weights, int64_t token) { return load_lanes(weights + token * kLanes); }
};

}  // namespace
}  // namespace winnow
