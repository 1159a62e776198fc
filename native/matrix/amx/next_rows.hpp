// Keys and values of the next block of tokens, asked for a little at a time while this one is worked on: the processor
// waits where it is asked for much at once.
#pragma once

#include <cstdint>

#include "simd/prefetch.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Where they are.
struct Bytes {
  const char* at;
  int64_t count;
};

class NextRows {
 public:
  // In so many steps. Both are asked for as far as the longer one is: what lies behind the shorter one is not used.
  NextRows(const Bytes& keys, const Bytes& values, int64_t steps)
      : keys_(keys.at),
        values_(values.at),
        lines_(divide_up(keys.count > values.count ? keys.count : values.count, kLine)),
        step_(divide_up(lines_, steps)) {}

  void ask() {
    for (int64_t i = 0; i < step_ && lines_ > 0; ++i, --lines_, keys_ += kLine, values_ += kLine) {
      prefetch_for_later(keys_, 1);
      prefetch_for_later(values_, 1);
    }
  }

 private:
  const char *keys_, *values_;
  int64_t lines_, step_;
};

}  // namespace
}  // namespace winnow
