// What a kernel found, held against what it had to find.
#pragma once

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "known/numbers.hpp"
#include "winnow_native.h"

struct Wrong : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void expect(bool right, const std::string& what) {
  if (!right) throw Wrong(what);
}

// Numbers of a dtype that differ from `expected` by the dtype's own rounding, and by `error` before that.
inline void expect_close(int32_t dtype, const void* found, const std::vector<double>& expected, double error,
                         const std::string& what) {
  const double rounding = std::ldexp(1.0, -1 - mantissa_bits(dtype));
  for (size_t i = 0; i < expected.size(); ++i) {
    const double number = number_at(dtype, found, static_cast<int64_t>(i));
    const double most = error + rounding * (std::fabs(expected[i]) + error);
    // Not a number is never close.
    if (std::fabs(number - expected[i]) <= most) continue;
    throw Wrong(what + ": number " + std::to_string(i) + " is " + std::to_string(number) + " and not " +
                std::to_string(expected[i]) + " up to " + std::to_string(most));
  }
}
