#include "attend/attend.hpp"

#include <algorithm>
#include <atomic>
#include <vector>

#include "attend/contract.hpp"
#include "packed/scratch.hpp"
#include "runtime/dispatch.hpp"
#include "runtime/pool.hpp"
#include "runtime/workspace.hpp"

namespace winnow {
namespace {

constexpr int64_t kElementBytes[kDtypes] = {4, 2, 2};

// Below this many bytes of keys and values, waking a second thread costs more than it saves.
constexpr int64_t kParallelBytes = 512 * 1024;

// Chunks are small enough to balance the threads and large enough to hide what a chunk costs besides reading.
constexpr int64_t kLeastChunkBytes = 64 * 1024;
constexpr int64_t kMostChunkBytes = 512 * 1024;
constexpr int64_t kChunksPerThread = 16;
constexpr int64_t kChunkTokenStep = 32;

// More queries per KV head than this are done in slices, which bounds the memory for partial results.
constexpr int64_t kSliceQueries = 64;

// Hands out consecutive pieces of a workspace, or only measures them when it has no base.
class Layout {
 public:
  explicit Layout(char* base) : base_(base) {}

  template <class T>
  T* take(int64_t count) {
    T* piece = reinterpret_cast<T*>(base_ + used_);
    used_ = round_up(used_ + count * static_cast<int64_t>(sizeof(T)), 64);
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

// The new tokens [first, first + count) of a call.
struct Slice {
  int64_t first, count;
};

// Tokens [first, first + tokens) of keys and values, or of a part of a prefix.
struct Segment {
  const winnow_part* part;  // null: the tail
  const void* keys;
  const void* values;
  int64_t first, tokens, visible;
};

// One call, or one slice of it: what the threads share.
class Job {
 public:
  Job(const winnow_decode_args& args, Slice slice, std::vector<Chunk>& chunks, Workspace& workspace)
      : args_(args), slice_(slice), kernels_(active_kernels()), chunks_(chunks) {
    shape_.queries = args.group_size * slice.count;
    shape_.group = args.group_size;
    shape_.key_dim = args.key_dim;
    shape_.value_dim = args.value_dim;
    shape_.query_width = round_up(args.key_dim, 16);
    shape_.value_width = round_up(args.value_dim, 16);
    shape_.scaling = args.scaling;
    shape_.softcap = args.softcap;
    element_bytes_ = kElementBytes[args.dtype];
    token_bytes_ = (args.key_dim + args.value_dim) * element_bytes_;
    const int64_t bytes = count_bytes();
    threads_ = bytes < kParallelBytes ? 1 : static_cast<int>(std::max(args.threads, 1));
    cut_chunks(chunk_tokens(bytes));
    Layout measured(nullptr);
    lay_out(measured);
    Layout real(workspace.reserve(measured.used()));
    lay_out(real);
    count_chunks();
  }

  void run() {
    run_parallel(threads_, [](void* job, int slot) { static_cast<Job*>(job)->work(slot); }, this);
  }

 private:
  int64_t groups() const { return args_.rows * args_.heads; }

  // Tail tokens that the last query of the slice sees.
  int64_t tail_tokens(int64_t row) const {
    const int64_t later = args_.queries - (slice_.first + slice_.count);
    return std::max<int64_t>(args_.tail_lengths[row] - later, 0);
  }

  // Body(part) for every part of a row's prefix.
  template <class Body>
  void for_parts(int64_t row, const Body& body) const {
    for (int64_t part = args_.part_bounds[row]; part < args_.part_bounds[row + 1]; ++part) body(args_.parts[part]);
  }

  int64_t prefix_tokens(int64_t row, int64_t head) const {
    int64_t tokens = 0;
    for_parts(row, [&](const winnow_part& part) { tokens += part.stops[head] - part.starts[head]; });
    return tokens;
  }

  // As if all were dense: packed tokens are fewer bytes, but no less work.
  int64_t count_bytes() const {
    int64_t tokens = 0;
    for (int64_t row = 0; row < args_.rows; ++row) {
      for (int64_t head = 0; head < args_.heads; ++head) tokens += prefix_tokens(row, head);
      tokens += args_.heads * tail_tokens(row);
    }
    return tokens * token_bytes_;
  }

  int64_t chunk_tokens(int64_t bytes) const {
    const int64_t wanted =
        std::clamp(bytes / (kChunksPerThread * threads_), kLeastChunkBytes, kMostChunkBytes) / token_bytes_;
    return std::clamp(round_up(wanted, kChunkTokenStep), kChunkTokenStep, kMaxChunkTokens);
  }

  void cut_chunks(int64_t most) {
    chunks_.clear();
    for (int64_t row = 0; row < args_.rows; ++row) {
      const int64_t tail = tail_tokens(row);
      for (int64_t head = 0; head < args_.heads; ++head) {
        const int64_t group = row * args_.heads + head;
        for_parts(row, [&](const winnow_part& part) {
          const int64_t tokens = part.stops[head] - part.starts[head];
          cut_segment({&part, part.keys.data, part.values.data, part.starts[head], tokens, tokens}, group, most);
        });
        // The first query of the slice sees all but the slice's own later tokens.
        cut_segment({nullptr, args_.tail_keys, args_.tail_values, group * args_.tail_capacity, tail,
                     tail - (slice_.count - 1)}, group, most);
      }
    }
  }

  // Cuts a segment into chunks of nearly equal length.
  void cut_segment(const Segment& segment, int64_t group, int64_t most) {
    if (segment.tokens == 0) return;
    const int64_t pieces = (segment.tokens + most - 1) / most;
    const int64_t piece = round_up((segment.tokens + pieces - 1) / pieces, kChunkTokenStep);
    const bool packed = segment.part && segment.part->packed;
    for (int64_t start = 0; start < segment.tokens; start += piece) {
      Chunk chunk;
      chunk.slot = segment.first + start;
      chunk.keys = packed ? nullptr : at(segment.keys, chunk.slot * args_.key_dim);
      chunk.values = packed ? nullptr : at(segment.values, chunk.slot * args_.value_dim);
      chunk.tokens = std::min(piece, segment.tokens - start);
      chunk.visible = segment.visible - start;
      chunk.group = group;
      chunk.head = group % args_.heads;
      chunk.part = packed ? segment.part : nullptr;
      chunks_.push_back(chunk);
    }
  }

  const void* at(const void* base, int64_t element) const {
    return static_cast<const char*>(base) + element * element_bytes_;
  }

  void lay_out(Layout& layout) {
    const int64_t count = static_cast<int64_t>(chunks_.size());
    max_ = layout.take<float>(count * shape_.stats_width());
    sum_ = layout.take<float>(count * shape_.stats_width());
    acc_ = layout.take<float>(count * shape_.acc_size());
    first_chunk_ = layout.take<int64_t>(groups() + 1);
    unfinished_ = layout.take<std::atomic<int64_t>>(groups());
    query_floats_ = kQueryPad * shape_.query_width;
    dense_floats_ = query_floats_ + kQueryPad * kLogitStride + kQueryPad * shape_.query_width;
    const bool packed = std::any_of(chunks_.begin(), chunks_.end(), [](const Chunk& chunk) { return chunk.part; });
    scratch_floats_ = dense_floats_ + (packed ? packed_floats(shape_) : 0);
    scratch_ = layout.take<float>(threads_ * scratch_floats_);
  }

  // Chunks are ordered by group, so a group's partial results lie side by side.
  void count_chunks() {
    int64_t chunk = 0;
    const int64_t count = static_cast<int64_t>(chunks_.size());
    for (int64_t group = 0; group < groups(); ++group) {
      first_chunk_[group] = chunk;
      while (chunk < count && chunks_[chunk].group == group) ++chunk;
      new (&unfinished_[group]) std::atomic<int64_t>(chunk - first_chunk_[group]);
    }
    first_chunk_[groups()] = chunk;
  }

  void work(int slot) {
    float* own = scratch_ + slot * scratch_floats_;
    const Scratch scratch{own, own + query_floats_, own + query_floats_ + kQueryPad * kLogitStride,
                          own + dense_floats_};
    const int64_t count = static_cast<int64_t>(chunks_.size());
    for (;;) {
      const int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
      if (index >= count) break;
      run_chunk(index, scratch);
    }
    if (slot == 0) merge_empty_groups();
  }

  void run_chunk(int64_t index, const Scratch& scratch) {
    const Chunk& chunk = chunks_[index];
    const Partial partial{max_ + index * shape_.stats_width(), sum_ + index * shape_.stats_width(),
                          acc_ + index * shape_.acc_size()};
    const ChunkFunction* functions = chunk.part ? kernels_.packed : kernels_.dense;
    functions[args_.dtype](shape_, chunk, queries_of(chunk.group), scratch, partial);
    // Whoever finishes the last chunk of a group merges it: no barrier, and its results are still in cache.
    if (unfinished_[chunk.group].fetch_sub(1, std::memory_order_acq_rel) == 1) merge_group(chunk.group);
  }

  void merge_empty_groups() {
    for (int64_t group = 0; group < groups(); ++group) {
      if (first_chunk_[group] == first_chunk_[group + 1]) merge_group(group);
    }
  }

  Queries queries_of(int64_t group) const {
    const int64_t row = group / args_.heads, head = group % args_.heads;
    const int64_t element = row * args_.query_row_stride + head * args_.group_size * args_.query_head_stride +
                            slice_.first * args_.query_token_stride;
    return {at(args_.query, element), args_.query_head_stride, args_.query_token_stride};
  }

  void merge_group(int64_t index) const {
    const int64_t row = index / args_.heads, head = index % args_.heads, first = first_chunk_[index];
    const int64_t token_stride = args_.heads * args_.group_size * args_.value_dim;
    const int64_t element = (row * args_.queries + slice_.first) * token_stride + head * args_.group_size * args_.value_dim;
    const Group group{first_chunk_[index + 1] - first, max_ + first * shape_.stats_width(),
                      sum_ + first * shape_.stats_width(), acc_ + first * shape_.acc_size(),
                      args_.sinks ? args_.sinks + head * args_.group_size : nullptr};
    kernels_.merge[args_.dtype](shape_, group,
                                {static_cast<char*>(args_.output) + element * element_bytes_, token_stride});
  }

  const winnow_decode_args& args_;
  Slice slice_;
  const Kernels& kernels_;
  Shape shape_;
  int64_t element_bytes_, token_bytes_;
  int threads_;
  std::vector<Chunk>& chunks_;
  std::atomic<int64_t> next_{0};  // the next chunk that nobody has taken

  float *max_, *sum_, *acc_;  // partial results, chunk after chunk
  int64_t* first_chunk_;      // [groups + 1]
  std::atomic<int64_t>* unfinished_;  // [groups] chunks to go
  float* scratch_;
  int64_t query_floats_, dense_floats_, scratch_floats_;
};

}  // namespace

void attend(const winnow_decode_args& args) {
  thread_local std::vector<Chunk> chunks;
  thread_local Workspace workspace;
  const int64_t most = std::max<int64_t>(kSliceQueries / args.group_size, 1);
  for (int64_t first = 0; first < args.queries; first += most) {
    Job job(args, {first, std::min(most, args.queries - first)}, chunks, workspace);
    job.run();
  }
}

}  // namespace winnow
