// Arithmetic on sizes.
#pragma once

#include <cstdint>

namespace winnow {
namespace {

constexpr int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }
constexpr int64_t round_up(int64_t n, int64_t multiple) { return divide_up(n, multiple) * multiple; }

}  // namespace
}  // namespace winnow
