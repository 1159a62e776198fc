// A call, or a slice of its new tokens, cut into chunks.
#pragma once

#include <algorithm>
#include <vector>

#include "attend/contract.hpp"
#include "runtime/kernels.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Chunks are small enough to balance the threads and large enough to hide what a chunk costs besides reading.
constexpr int64_t kLeastChunkBytes = 64 * 1024;
constexpr int64_t kMostChunkBytes = 512 * 1024;
constexpr int64_t kChunksPerThread = 16;
constexpr int64_t kChunkTokenStep = 32;

// The new tokens [first, first + count) of a call.
struct Slice {
  int64_t first, count;
};

class Cutting {
 public:
  Cutting(const winnow_decode_args& args, Slice slice)
      : args_(args),
        slice_(slice),
        element_bytes_(kElementBytes[args.dtype]),
        token_bytes_((args.key_dim + args.value_dim) * element_bytes_) {}

  // As if all were dense: packed tokens are fewer bytes, but no less work.
  int64_t bytes() const {
    int64_t tokens = 0;
    for_segments([&](const Segment& segment) { tokens += segment.tokens; });
    return tokens * token_bytes_;
  }

  // Cuts segments into chunks of nearly equal length, ordered by row_head. `bytes` are those of all, for `threads`.
  void cut(int64_t bytes, int threads, std::vector<Chunk>& chunks) const {
    const int64_t wanted = std::clamp(bytes / (kChunksPerThread * threads), kLeastChunkBytes, kMostChunkBytes);
    const int64_t most =
        std::clamp(round_up(wanted / token_bytes_, kChunkTokenStep), kChunkTokenStep, kMaxChunkTokens);
    chunks.clear();
    for_segments([&](const Segment& segment) {
      if (segment.tokens == 0) return;
      const int64_t piece = round_up(divide_up(segment.tokens, divide_up(segment.tokens, most)), kChunkTokenStep);
      for (int64_t start = 0; start < segment.tokens; start += piece) {
        chunks.push_back(chunk(segment, start, std::min(piece, segment.tokens - start)));
      }
    });
  }

 private:
  // Tokens [first, first + tokens) of keys and values of a (row, KV head).
  struct Segment {
    int64_t row_head;
    const winnow_part* packed;  // or null
    const void* keys;
    const void* values;
    int64_t first, tokens, visible;
  };

  // body(segment) for all that some query of the slice sees.
  template <class Body>
  void for_segments(const Body& body) const {
    const int64_t later = args_.queries - (slice_.first + slice_.count);
    for (int64_t row_head = 0; row_head < args_.rows * args_.heads; ++row_head) {
      const int64_t row = row_head / args_.heads, head = row_head % args_.heads;
      for (int64_t i = args_.part_bounds[row]; i < args_.part_bounds[row + 1]; ++i) {
        const winnow_part& part = args_.parts[i];
        const int64_t first = part.starts[head], tokens = part.stops[head] - first;
        body(Segment{row_head, part.packed ? &part : nullptr, part.keys.data, part.values.data, first, tokens, tokens});
      }
      // The first query of the slice sees all but the slice's own later tokens.
      const int64_t tail = std::max<int64_t>(args_.tail_lengths[row] - later, 0);
      body(Segment{row_head, nullptr, args_.tail_keys, args_.tail_values, row_head * args_.tail_capacity, tail,
                   tail - (slice_.count - 1)});
    }
  }

  Chunk chunk(const Segment& segment, int64_t start, int64_t tokens) const {
    const int64_t slot = segment.first + start;
    const auto at = [&](const void* rows, int64_t dim) -> const void* {
      return segment.packed ? nullptr : static_cast<const char*>(rows) + slot * dim * element_bytes_;
    };
    return {at(segment.keys, args_.key_dim), at(segment.values, args_.value_dim), tokens, segment.visible - start,
            segment.row_head, segment.row_head % args_.heads, segment.packed, slot};
  }

  const winnow_decode_args& args_;
  Slice slice_;
  int64_t element_bytes_, token_bytes_;
};

}  // namespace
}  // namespace winnow
