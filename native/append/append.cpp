#include "append/append.hpp"

#include <algorithm>
#include <cstring>

namespace winnow {
namespace {

// The column of a row's new token.
int64_t place(const winnow_append_args& args, int64_t row, int64_t token) {
  if (args.seen) return (args.seen[row] + token) % args.window;
  return (args.lengths ? args.lengths[row] : args.column) + token;
}

bool row_has_room(const winnow_append_args& args, int64_t row) {
  const int64_t first = place(args, row, 0);
  if (first < 0 || args.tokens < 0) return false;
  const int64_t columns = args.seen ? std::min(first + args.tokens, args.window) : first + args.tokens;
  return columns <= args.capacity;
}

void copy(const winnow_append_args& args, const winnow_columns& columns, int64_t row) {
  const auto* source = static_cast<const char*>(columns.source) + row * columns.row_stride;
  auto* target = static_cast<char*>(columns.target);
  const int64_t spared = args.seen ? 1 : args.tokens;
  for (int64_t head = 0; head < args.heads; ++head) {
    const char* from = source + head * columns.head_stride;
    char* buffer = target + (row * args.heads + head) * args.capacity * columns.bytes;
    char* spare = static_cast<char*>(columns.spare);
    if (spare) spare += (row * args.heads + head) * spared * columns.bytes;
    for (int64_t token = 0; token < args.tokens; ++token) {
      char* into = buffer + place(args, row, token) * columns.bytes;
      if (spare) std::memcpy(spare + token % spared * columns.bytes, into, columns.bytes);
      std::memcpy(into, from + token * columns.token_stride, columns.bytes);
    }
  }
}

// Of a row whose new tokens are there.
void count(const winnow_append_args& args, int64_t row) {
  if (args.seen) {
    args.seen[row] += args.tokens;
    args.lengths[row] = std::min(args.seen[row], args.window);
  } else if (args.lengths) {
    args.lengths[row] += args.tokens;
  }
}

}  // namespace

bool has_room(const winnow_append_args& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    if (!row_has_room(args, row)) return false;
  }
  return true;
}

bool append(const winnow_append_args& args) {
  if (!has_room(args)) return false;
  for (int64_t row = 0; row < args.rows; ++row) {
    copy(args, args.first, row);
    if (args.second.target) copy(args, args.second, row);
    count(args, row);
  }
  return true;
}

}  // namespace winnow
