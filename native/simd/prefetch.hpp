// Software prefetch.
//
// The hardware prefetcher stops at every 4 KB page; asking for the lines a page or two ahead keeps the
// memory busy across the border.
#pragma once

#include <cstdint>

#include "simd/processor.hpp"

namespace winnow {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kPrefetchBytes = 6144;

// True where a line is best asked for once, into the first-level cache: Zen 5 waits for many at a time, and a second request
// for the same line takes the place of another.
constexpr bool kAskOnce = kZenGeneration == 5;

// True where a line is best asked for twice, as below, even if nothing but a sum is made of it.
constexpr bool kAskTwice = kZenGeneration == 4;

// True where the processor foresees rows that are read one after another so well that requests only cost time.
constexpr bool kForesees = kZenGeneration == 4;

inline void prefetch(const char* p) { __builtin_prefetch(p, 0, 3); }

// Lines that are read after many others: too many for the first-level cache, but not for the second.
inline void prefetch_for_later(const char* p, int64_t bytes) {
  for (int64_t byte = 0; byte < bytes; byte += kLine) __builtin_prefetch(p + byte, 0, 2);
}

// A line to come that meets arithmetic, where `ahead` is kPrefetchBytes ahead: it is asked for twice as far ahead. But for
// kAskOnce into the second level only, and from there into the first: the first-level cache waits for a few lines only, and
// while it waits for all of them nothing else is done.
inline void prefetch_busy(const char* ahead) {
  if (kAskOnce) return prefetch(ahead + kPrefetchBytes);
  prefetch_for_later(ahead + kPrefetchBytes, 1);
  prefetch(ahead - kPrefetchBytes / 3);
}

// In the place of what is asked for, where all that is read lies in the first-level cache or is foreseen.
struct NothingAhead {
  template <int64_t kBytes>
  void ask(const char*, int64_t, int64_t) const {}
  NothingAhead operator+(int64_t) const { return {}; }
  NothingAhead& operator+=(int64_t) { return *this; }
};
inline void prefetch_busy(NothingAhead) {}

// Calls body(ahead), or body(NothingAhead) where rows of so many bytes are foreseen: where they are short, and so few queries
// meet them that each row is read at once.
template <int kQueries, class Ahead, class Body>
inline void with_requests(int64_t row_bytes, const Ahead& ahead, const Body& body) {
  if constexpr (kForesees && kQueries <= 2) {
    if (row_bytes <= 4 * kLine) return body(NothingAhead{});
  }
  body(ahead);
}

// The lines that hold kBytes bytes from p on, or one when they are fewer than a line; kBusy if they meet arithmetic.
template <int64_t kBytes, bool kBusy>
inline void prefetch_span(const char* p) {
  for (int64_t byte = 0; byte < kBytes; byte += kLine) {
    kBusy || kAskTwice ? prefetch_busy(p + byte) : prefetch(p + byte);
  }
}
template <int64_t kBytes, bool kBusy>
inline void prefetch_span(NothingAhead) {}

// The lines of a row of `bytes` bytes to come, one at least, while `row` is read.
inline void prefetch_row(const void* row, int64_t bytes) {
  const char* ahead = static_cast<const char*>(row) + kPrefetchBytes;
  prefetch(ahead);
  for (int64_t byte = kLine; byte < bytes; byte += kLine) prefetch(ahead + byte);
}

// True where numbers of kBytes bytes meet so many queries that a line takes more arithmetic than a sum over it.
constexpr bool meet_arithmetic(int queries, int64_t bytes) { return queries * 4 > bytes; }

// The place to prefetch while reading `at` of one array that ends at `end`: the same distance ahead, running on
// into the array that will be read next.
inline const char* ahead_of(const void* at, const void* end, const void* next) {
  const char* ahead = static_cast<const char*>(at) + kPrefetchBytes;
  const char* limit = static_cast<const char*>(end);
  return ahead < limit ? ahead : static_cast<const char*>(next) + (ahead - limit);
}

// The same where nothing is known to be read next.
inline const char* clamped_ahead_of(const void* at, const void* last) {
  const char* ahead = static_cast<const char*>(at) + kPrefetchBytes;
  return ahead < static_cast<const char*>(last) ? ahead : static_cast<const char*>(last);
}

}  // namespace
}  // namespace winnow
