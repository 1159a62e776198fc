// A call, or a slice of its new tokens, cut into chunks.
#pragma once

#include <algorithm>
#include <vector>

#include "attend/contract.hpp"
#include "attend/sharing.hpp"
#include "runtime/kernels.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Chunks are small enough to balance the threads and large enough to hide what a chunk costs besides reading, which is
// as much as 50 to 100 tokens. There are two for every thread; one where two would be small, or where it is alone.
constexpr int64_t kChunksPerThread = 2;
constexpr int64_t kLeastChunkBytes = 64 * 1024;
constexpr int64_t kSmallChunkBytes = 128 * 1024;
constexpr int64_t kMostChunkBytes = 512 * 1024;
// The same for packed latents, which take half of them at most: in every chunk the queries of all heads take the coordinates
// of latents, and sums leave them.
constexpr int64_t kMostLatentBytes = 1024 * 1024;
constexpr int64_t kChunkTokenStep = 32;

// Rows that read a chunk together have no more queries than this, or are one row: many queries are long work, which
// threads should share, and reading a chunk again costs little beside them.
constexpr int64_t kMostSharedQueries = 256;

// The new tokens [first, first + count) of a call.
struct Slice {
  int64_t first, count;
};

// Bytes of keys and values as if all were dense: packed tokens are fewer bytes, but no less work.
struct Amount {
  int64_t held;  // each once
  int64_t read;  // as often as there are rows that read them
};

// Chunks, and the rows that read them. Keeps its memory between calls.
struct Chunks {
  std::vector<Chunk> all;
  std::vector<int64_t> readers;

  int64_t count() const { return static_cast<int64_t>(all.size()); }
};

class Cutting {
 public:
  Cutting(const winnow_decode_args& args, Slice slice, Sharing& sharing)
      : args_(args),
        slice_(slice),
        sharing_(sharing),
        element_bytes_(kElementBytes[args.dtype]),
        token_bytes_((args.key_dim + args.value_dim) * element_bytes_),
        most_readers_(std::max<int64_t>(kMostSharedQueries / (args.group_size * slice.count), 1)) {}

  Amount amount() const {
    Amount amount{0, 0};
    for_segments([&](const Segment& segment) {
      amount.held += segment.tokens * token_bytes_;
      amount.read += segment.tokens * token_bytes_ * segment.row_count;
    });
    return amount;
  }

  // Cuts segments into chunks of nearly equal length. `bytes` are those held by all, for `threads`.
  void cut(int64_t bytes, int threads, Chunks& chunks) const {
    const int64_t share = bytes / threads;
    const int64_t fair = threads == 1 ? share : std::max(share / kChunksPerThread, least(share, kSmallChunkBytes));
    const auto most_of = [&](int64_t most_bytes) {
      const int64_t wanted = std::clamp(fair, kLeastChunkBytes, most_bytes);
      return std::clamp(round_up(wanted / token_bytes_, kChunkTokenStep), kChunkTokenStep, kMaxChunkTokens);
    };
    const int64_t most = most_of(kMostChunkBytes), most_latents = most_of(kMostLatentBytes);
    chunks.all.clear();
    chunks.readers.clear();
    for_segments([&](const Segment& segment) {
      const int64_t first_reader = static_cast<int64_t>(chunks.readers.size());
      chunks.readers.insert(chunks.readers.end(), segment.rows, segment.rows + segment.row_count);
      const int64_t pieces = args_.latent && segment.packed ? even_pieces(divide_up(segment.tokens, most_latents), threads)
                                                            : divide_up(segment.tokens, most);
      const int64_t piece = round_up(divide_up(segment.tokens, pieces), kChunkTokenStep);
      for (int64_t start = 0; start < segment.tokens; start += piece) {
        chunks.all.push_back(chunk(segment, first_reader, start, std::min(piece, segment.tokens - start)));
      }
    });
  }

 private:
  // Tokens [first, first + tokens) of keys and values of a KV head, for some rows.
  struct Segment {
    const int64_t* rows;
    int64_t row_count, head;
    const winnow_part* packed;  // or null
    const void* keys;
    const void* values;
    int64_t first, tokens, visible, hidden;
  };

  // body(segment) for all that some query of the slice sees: first what rows share, then row after row what is its own,
  // as it lies in memory.
  template <class Body>
  void for_segments(const Body& body) const {
    for (int64_t head = 0; head < args_.heads; ++head) {
      sharing_.for_shared(head, [&](const Reading& reading) {
        for (int64_t row = 0; row < reading.row_count; row += most_readers_) {
          const int64_t count = std::min(most_readers_, reading.row_count - row);
          body(of_part(*reading.part, head, reading.first, reading.tokens, reading.rows + row, count));
        }
      });
    }
    auto own = sharing_.own().begin();
    for (int64_t row = 0; row < args_.rows; ++row) {
      const auto first = own;
      while (own != sharing_.own().end() && own->row == row) ++own;
      for (int64_t head = 0; head < args_.heads; ++head) {
        for (auto each = first; each != own; ++each) {
          const int64_t start = each->part->starts[head], tokens = each->part->stops[head] - start;
          if (tokens > 0) body(of_part(*each->part, head, start, tokens, &row, 1));
        }
        if (args_.ring) in_order(*args_.ring, row, head, body);
        tail(row, head, body);
      }
    }
  }

  // As many for each of the threads, where each has one: no other head makes up for one more.
  static int64_t even_pieces(int64_t pieces, int threads) { return pieces > threads ? round_up(pieces, threads) : pieces; }

  static Segment of_part(const winnow_part& part, int64_t head, int64_t first, int64_t tokens, const int64_t* rows,
                         int64_t row_count) {
    return {rows, row_count, head, part.packed ? &part : nullptr, part.keys.data, part.values.data, first, tokens, tokens,
            kNoneHidden};
  }

  // A row's tokens of a ring, the oldest first, that lie behind each other, but for those that no query of the slice sees.
  template <class Body>
  void in_order(const winnow_ring& ring, int64_t row, int64_t head, const Body& body) const {
    const int64_t seen = ring.seen[row], held = std::min(seen, ring.window), oldest = (seen - held) % ring.window;
    const int64_t hidden = slice_.first + 1 + held - ring.window, first = std::clamp<int64_t>(hidden, 0, held);
    const auto piece = [&](int64_t from, int64_t to) {
      const int64_t column = (oldest + from) % ring.window;
      if (from < to) {
        body(Segment{&row, 1, head, nullptr, ring.keys, ring.values, (row * args_.heads + head) * ring.capacity + column,
                     to - from, to - from, hidden - from});
      }
    };
    const int64_t turn = std::min(held, ring.window - oldest);
    piece(first, turn);
    piece(std::max(first, turn), held);
  }

  // The first query of the slice sees all but the slice's own later tokens, as far back as a ring would keep them.
  template <class Body>
  void tail(int64_t row, int64_t head, const Body& body) const {
    const int64_t later = args_.queries - (slice_.first + slice_.count);
    const int64_t tokens = args_.tail_lengths[row] - later;
    if (tokens <= 0) return;
    body(Segment{&row, 1, head, nullptr, args_.tail_keys, args_.tail_values,
                 (row * args_.heads + head) * args_.tail_capacity, tokens, tokens - (slice_.count - 1),
                 args_.ring ? slice_.first + 1 - args_.ring->window : kNoneHidden});
  }

  Chunk chunk(const Segment& segment, int64_t first_reader, int64_t start, int64_t tokens) const {
    const int64_t slot = segment.first + start;
    const auto at = [&](const void* rows, int64_t dim) -> const void* {
      return segment.packed ? nullptr : static_cast<const char*>(rows) + slot * dim * element_bytes_;
    };
    return {at(segment.keys, args_.key_dim), at(segment.values, args_.value_dim), tokens, segment.visible - start,
            segment.hidden - start, first_reader, segment.row_count, segment.head, segment.packed, slot};
  }

  const winnow_decode_args& args_;
  Slice slice_;
  Sharing& sharing_;
  int64_t element_bytes_, token_bytes_;
  int64_t most_readers_;
};

}  // namespace
}  // namespace winnow
