// Channels of a few rows of inputs, as products take them.
#pragma once

#include <cstdint>

#include "linear/rows.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Bytes of rows of inputs that meet all outputs a thread does at a time: of a first-level cache the rest is for the weight.
constexpr int64_t kInputBytes = 24 * 1024;

// Copies of the channels of rows, beside each other: those of all rows that meet one vector of the weight, then the next. Rows
// as they lie may begin whole pages apart, where the lines of eight have one place in a first-level cache that holds eight; and
// numbers that become others for a product do so once for all outputs.
template <class Channels>
class CopiedInputs {
 public:
  using Numbers = typename Channels::Numbers;

  // Channels of so many rows that fit, of `all`: parts that are as even as they can be.
  static int64_t width(int64_t rows, int64_t all) {
    const int64_t fit = kVectors / rows * Channels::kTogether;
    return round_up(divide_up(all, divide_up(all, fit)), Channels::kTogether);
  }

  // Takes `count` channels of each row.
  template <int kRows, class T>
  void copy(const T* const (&rows)[kRows], int64_t count) {
    Numbers* to = numbers_;
    for (int64_t d = 0; d < count; d += Channels::kTogether, to += kRows) {
      unroll<kRows>([&](auto r) { to[r] = Channels::input_up_to(rows[r] + d, count - d); });
    }
  }

  const Numbers* numbers() const { return numbers_; }

 private:
  static constexpr int64_t kVectors = kInputBytes / static_cast<int64_t>(sizeof(Numbers));
  Numbers numbers_[kVectors];
};

}  // namespace
}  // namespace winnow
