// The Walsh–Hadamard transform by its matrix: what is written rotated, and what rotating is held to.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

inline int64_t rotation_block(int64_t dim) { return dim & -dim; }

// Every block of so many channels times Sylvester's matrix, orthonormal.
inline void rotate_row(double* row, int64_t dim) {
  const int64_t block = rotation_block(dim);
  std::vector<double> turned(static_cast<size_t>(block));
  for (int64_t first = 0; first < dim; first += block) {
    for (int64_t i = 0; i < block; ++i) {
      turned[i] = 0;
      for (int64_t j = 0; j < block; ++j) turned[i] += (__builtin_popcountll(i & j) & 1 ? -1 : 1) * row[first + j];
    }
    for (int64_t i = 0; i < block; ++i) row[first + i] = turned[i] / std::sqrt(static_cast<double>(block));
  }
}
