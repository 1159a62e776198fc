// Small integers in the bytes of rows, as src/winnow/kernels/formats/bits.py defines them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

// Bits of the two planes in which numbers lie; the second has none where one is enough.
inline int low_plane(int bits) { return bits == 6 ? 4 : bits == 3 ? 2 : bits; }

inline int64_t plane_bytes(int64_t numbers, int bits) { return (numbers * bits + 7) / 8; }

inline int64_t integer_row_bytes(int64_t numbers, int bits) {
  const int low = low_plane(bits);
  return plane_bytes(numbers, low) + plane_bytes(numbers, bits - low);
}

// Adds the lowest bits of numbers to a row of zeros, block after block.
inline void write_plane(const std::vector<uint32_t>& numbers, int bits, uint8_t* row) {
  const int64_t per_byte = 8 / bits, most = std::min<int64_t>(16 * per_byte, 64);
  const int64_t count = static_cast<int64_t>(numbers.size());
  for (int64_t first = 0; first < count; first += most) {
    const int64_t held = std::min(most, count - first), bytes = plane_bytes(held, bits);
    for (int64_t i = 0; i < held; ++i) {
      const uint32_t number = numbers[first + i] & ((1u << bits) - 1);
      row[first / per_byte + i % bytes] |= static_cast<uint8_t>(number << (i / bytes * bits));
    }
  }
}

inline void write_integers(std::vector<uint32_t> numbers, int bits, uint8_t* row) {
  const int low = low_plane(bits);
  write_plane(numbers, low, row);
  if (low == bits) return;
  row += plane_bytes(static_cast<int64_t>(numbers.size()), low);
  for (uint32_t& each : numbers) each >>= low;
  write_plane(numbers, bits - low, row);
}

// The number that so many bits mean in two's complement.
inline double signed_integer(uint32_t number, int bits) {
  return number >> (bits - 1) ? static_cast<double>(number) - (1 << bits) : number;
}
