// Lines that are read next, while rows of inputs meet a part of a weight.
#pragma once

#include <cstdint>

namespace winnow {
namespace {

// Some of them: of `count` rows which are `stride` bytes apart.
struct RowsAhead {
  const char* first;
  int64_t stride, count;

  // Asks for one line of each.
  template <int kLocality>
  void ask(int64_t byte) const {
    for (int64_t r = 0; r < count; ++r) __builtin_prefetch(first + r * stride + byte, 0, kLocality);
  }
};

}  // namespace
}  // namespace winnow
