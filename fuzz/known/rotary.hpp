// Rotary embedding: every pair of channels is turned by its angles, close to double precision.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "bytes.hpp"
#include "known/compare.hpp"
#include "known/numbers.hpp"
#include "winnow_native.h"

// Heads [rows, tokens, heads, dim] in memory, as projections leave them, or [rows, heads, tokens, dim].
inline winnow_rotary_rows rotary_rows(Bytes& from, Arrays& arrays, const winnow_rotary_args& args) {
  winnow_rotary_rows made{};
  made.heads = from.among(1, 5);
  const int64_t width = args.dim + args.rest, count = args.rows * made.heads * args.tokens * width;
  made.source = arrays.numbers(args.dtype, count, false);
  made.target = arrays.zeros<uint8_t>(count * bytes_of(args.dtype));
  made.source_row = made.target_row = made.heads * args.tokens * width;
  const bool as_projected = from.coin(), same = from.coin();
  made.source_head = as_projected ? width : args.tokens * width;
  made.source_token = as_projected ? made.heads * width : width;
  made.target_head = same ? made.source_head : args.tokens * width;
  made.target_token = same ? made.source_token : width;
  return made;
}

// A pair: where its cosines and sines are, and its channels in the source and in the target.
struct RotaryPair {
  int64_t cosines[2], sines[2], channels[2], targets[2];
};

inline RotaryPair rotary_pair(const winnow_rotary_args& args, int64_t i) {
  const int64_t half = args.dim / 2, next = (i + half) % args.angles;
  switch (args.points) {
    case WINNOW_COMPLEX: return {{2 * i, 2 * i}, {2 * i + 1, 2 * i + 1}, {2 * i, 2 * i + 1}, {2 * i, 2 * i + 1}};
    case WINNOW_INTERLEAVED: return {{i, i}, {i, i}, {2 * i, 2 * i + 1}, {i, i + half}};
    default: return {{i, next}, {i, next}, {i, i + half}, {i, i + half}};
  }
}

inline int32_t dtype_of_angles(const winnow_rotary_args& args) {
  return args.points == WINNOW_COMPLEX ? static_cast<int32_t>(WINNOW_F32) : args.dtype;
}

inline void expect_turned(const winnow_rotary_args& args, const winnow_rotary_rows& heads) {
  std::vector<double> found, expected;
  double largest = 0;
  const int64_t half = args.dim / 2;
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t head = 0; head < heads.heads; ++head) {
      for (int64_t token = 0; token < args.tokens; ++token) {
        const int64_t angles = row * args.angles_row + token * args.angles;
        const int64_t source = row * heads.source_row + head * heads.source_head + token * heads.source_token;
        const int64_t target = row * heads.target_row + head * heads.target_head + token * heads.target_token;
        for (int64_t i = 0; i < args.dim; ++i) {
          const RotaryPair pair = rotary_pair(args, i % half);
          const double cosine = number_at(dtype_of_angles(args), args.cos, angles + pair.cosines[i / half]);
          const double sine = number_at(dtype_of_angles(args), args.sin, angles + pair.sines[i / half]);
          const double number = number_at(args.dtype, heads.source, source + pair.channels[i / half]);
          const double other = number_at(args.dtype, heads.source, source + pair.channels[1 - i / half]);
          const double one = number * cosine;
          const double two = (i < half ? -other : other) * sine;
          largest = std::fmax(largest, std::fabs(one) + std::fabs(two));
          expected.push_back(one + two);
          found.push_back(number_at(args.dtype, heads.target, target + pair.targets[i / half]));
        }
        for (int64_t i = args.dim; i < args.dim + args.rest; ++i) {
          const bool same = number_at(args.dtype, heads.target, target + i) == number_at(args.dtype, heads.source, source + i);
          expect(same, "a channel without an angle is turned");
        }
      }
    }
  }
  // Both products are rounded, and their sum.
  const double error = 2 * largest * std::ldexp(1.0, -1 - mantissa_bits(args.dtype)) + 1e-30;
  for (size_t i = 0; i < found.size(); ++i) expect(std::fabs(found[i] - expected[i]) <= error, "a pair is turned wrongly");
}

inline void check_rotary(Bytes& from, uint64_t seed) {
  Arrays arrays(seed);
  winnow_rotary_args args{};
  args.dtype = static_cast<int32_t>(from.below(3));
  args.threads = static_cast<int32_t>(from.among(1, 3));
  args.rows = from.below(4);
  args.tokens = from.below(8) ? from.below(9) : from.among(100, 300);
  args.dim = 2 * from.among(1, 70);
  args.rest = from.coin() ? 0 : from.among(1, 70);
  const bool shared = from.coin();
  args.angles = from.coin() ? args.dim : args.dim / 2;
  args.points = static_cast<int32_t>(from.below(3));
  if (args.points == WINNOW_COMPLEX) args.angles = args.dim;
  args.angles_row = shared ? 0 : args.tokens * args.angles;
  const int64_t angles = (shared ? 1 : args.rows) * args.tokens * args.angles;
  args.cos = arrays.numbers(dtype_of_angles(args), angles, false);
  args.sin = args.points == WINNOW_COMPLEX ? args.cos : arrays.numbers(args.dtype, angles, false);
  args.queries = rotary_rows(from, arrays, args);
  args.keys = rotary_rows(from, arrays, args);
  expect(winnow_rotary(&args) == WINNOW_OK, "winnow_rotary refused");
  expect_turned(args, args.queries);
  expect_turned(args, args.keys);
}
