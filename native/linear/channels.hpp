// Channels of a weight that meet those of an input one by one, in fp32.
#pragma once

#include <cstdint>

#include "simd/vec.hpp"

namespace winnow {
namespace {

// Inputs of type T, weights of type W. kTogether channels meet at a time, and those of kLines lines of a row of the weight have
// sums of their own where these are few.
template <class T, class W>
struct SingleChannels {
  static constexpr int64_t kTogether = Vec::width;
  static constexpr int kLines = 1;
  using Numbers = Vec;

  static Numbers input(const T* p) { return load(p); }
  static Numbers weight(const W* p) { return load(p); }
  // The first n, or all if there are more; the others are zero and their memory is not touched.
  static Numbers input_up_to(const T* p, int64_t n) { return load_up_to(p, n); }
  static Numbers weight_up_to(const W* p, int64_t n) { return load_up_to(p, n); }

  static Vec add(Vec sum, Numbers weight, Numbers input) { return fma(weight, input, sum); }
};

}  // namespace
}  // namespace winnow
