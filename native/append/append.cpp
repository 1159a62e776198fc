#include "append/append.hpp"

#include <algorithm>
#include <cstring>

namespace winnow {
namespace {

// The column of a row's first new token.
int64_t place(const winnow_append_args& args, int64_t row) {
  if (args.seen) return args.seen[row] % args.window;
  return args.lengths ? args.lengths[row] : args.column;
}

bool row_has_room(const winnow_append_args& args, int64_t row) {
  const int64_t first = place(args, row);
  return first >= 0 && args.tokens >= 0 && first <= args.capacity - args.tokens;
}

void copy(const winnow_append_args& args, const winnow_columns& columns, int64_t row) {
  const auto* source = static_cast<const char*>(columns.source) + row * columns.row_stride;
  auto* target = static_cast<char*>(columns.target);
  for (int64_t head = 0; head < args.heads; ++head) {
    const char* from = source + head * columns.head_stride;
    char* into = target + ((row * args.heads + head) * args.capacity + place(args, row)) * columns.bytes;
    if (columns.spare) {
      const int64_t bytes = args.tokens * columns.bytes;
      auto* spare = static_cast<char*>(columns.spare) + (row * args.heads + head) * bytes;
      std::memcpy(spare, into, static_cast<size_t>(bytes));
    }
    for (int64_t token = 0; token < args.tokens; ++token) {
      std::memcpy(into + token * columns.bytes, from + token * columns.token_stride, columns.bytes);
    }
  }
}

// Of a row whose new tokens are there.
void count(const winnow_append_args& args, int64_t row) {
  if (args.seen) {
    args.lengths[row] = std::min(++args.seen[row], args.window);
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
