// Rows after a Walsh–Hadamard transform: to the bit those of plain loops in its one order, and close to its matrix.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "bytes.hpp"
#include "known/compare.hpp"
#include "known/numbers.hpp"
#include "known/rotation.hpp"
#include "winnow_native.h"

// Sums of channels 1 apart, then 2, 4 …, and one product at the end.
inline std::vector<float> butterflies_of(std::vector<float> row) {
  const int64_t dim = static_cast<int64_t>(row.size()), block = rotation_block(dim);
  for (int64_t apart = 1; apart < block; apart *= 2) {
    for (int64_t i = 0; i < dim; ++i) {
      if (i & apart) continue;
      const float a = row[i], b = row[i + apart];
      row[i] = a + b;
      row[i + apart] = a - b;
    }
  }
  const float factor = static_cast<float>(1 / std::sqrt(static_cast<double>(block)));
  for (float& each : row) each *= factor;
  return row;
}

inline void check_rotate(Bytes& from, uint64_t seed) {
  Arrays arrays(seed);
  winnow_rotate_args args{};
  args.slots = from.below(300);
  args.dim = from.coin() ? from.among(1, 140) : 16 * from.among(1, 16);
  args.dtype = static_cast<int32_t>(from.below(3));
  args.threads = static_cast<int32_t>(from.among(1, 3));
  args.rows = arrays.numbers(args.dtype, args.slots * args.dim, false);
  args.output = arrays.zeros<float>(args.slots * args.dim);
  expect(winnow_rotate(&args) == WINNOW_OK, "winnow_rotate refused");
  std::vector<double> expected = numbers_at(args.dtype, args.rows, args.slots * args.dim);
  for (int64_t slot = 0; slot < args.slots; ++slot) {
    double* row = expected.data() + slot * args.dim;
    const std::vector<float> turned = butterflies_of(std::vector<float>(row, row + args.dim));
    for (int64_t d = 0; d < args.dim; ++d) {
      expect(args.output[slot * args.dim + d] == turned[d], "a rotated number to the bit");
    }
    rotate_row(row, args.dim);
  }
  // Blocks have up to 256 numbers below 2, each rounded eight times.
  expect_close(WINNOW_F32, args.output, expected, 8 * 256 * 2 * 0x1p-24 / 16, "rotated numbers");
}
