#include "attend/attend.hpp"

#include <algorithm>
#include <atomic>
#include <vector>

#include "attend/contract.hpp"
#include "attend/cutting.hpp"
#include "packed/scratch.hpp"
#include "runtime/dispatch.hpp"
#include "runtime/pool.hpp"
#include "runtime/red_zones.hpp"
#include "runtime/workspace.hpp"

namespace winnow {
namespace {

// Below this many bytes of keys and values, waking a second thread costs more than it saves.
constexpr int64_t kParallelBytes = 512 * 1024;

// More queries per KV head than this are done in slices, which bounds the memory for partial results.
constexpr int64_t kSliceQueries = 64;

// Hands out consecutive pieces of a workspace, or only measures them when it has no base.
class Layout {
 public:
  explicit Layout(char* base) : base_(base) {}

  template <class T>
  T* take(int64_t count) {
    T* piece = is_real() ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ = round_up(used_ + count * static_cast<int64_t>(sizeof(T)), 64) + kRedZone;
    if (is_real()) forbid(base_ + used_ - kRedZone, kRedZone);
    return piece;
  }
  int64_t used() const { return used_; }
  bool is_real() const { return base_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

// One call, or one slice of it: all that the threads share.
class Job {
 public:
  Job(const winnow_decode_args& args, Slice slice, std::vector<Chunk>& chunks, Workspace& workspace)
      : args_(args),
        slice_(slice),
        kernels_(active_kernels()),
        shape_{args.group_size * slice.count, args.group_size, args.key_dim, args.value_dim,
               round_up(args.key_dim, 16), round_up(args.value_dim, 16), args.scaling, args.softcap},
        chunks_(chunks) {
    const Cutting cutting(args, slice);
    const int64_t bytes = cutting.bytes();
    threads_ = bytes < kParallelBytes ? 1 : std::max(args.threads, 1);
    cutting.cut(bytes, threads_, chunks);
    Layout measured(nullptr);
    lay_out(measured);
    Layout real(workspace.reserve(measured.used()));
    lay_out(real);
    count_chunks();
  }

  void run() const {
    run_blocks(threads_, chunk_count(), 1, [&](int slot, int64_t chunk, int64_t) { run_chunk(chunk, slot); });
    merge_unseen();
  }

 private:
  int64_t row_heads() const { return args_.rows * args_.heads; }
  int64_t chunk_count() const { return static_cast<int64_t>(chunks_.size()); }

  void lay_out(Layout& layout) {
    partials_.max = layout.take<float>(chunk_count() * shape_.stats_width());
    partials_.sum = layout.take<float>(chunk_count() * shape_.stats_width());
    partials_.acc = layout.take<float>(chunk_count() * shape_.acc_size());
    first_chunk_ = layout.take<int64_t>(row_heads() + 1);
    unfinished_ = layout.take<std::atomic<int64_t>>(row_heads());
    const bool packed = std::any_of(chunks_.begin(), chunks_.end(), [](const Chunk& chunk) { return chunk.part; });
    scratch_ = layout.take<Scratch>(threads_);
    for (int slot = 0; slot < threads_; ++slot) {
      const Scratch own{layout.take<float>(kQueryPad * shape_.query_width), layout.take<float>(kQueryPad * kLogitStride),
                        layout.take<float>(kQueryPad * shape_.query_width),
                        layout.take<float>(packed ? packed_floats(shape_) : 0)};
      if (layout.is_real()) scratch_[slot] = own;
    }
  }

  // Chunks are ordered by row_head, so the partial results of one lie side by side.
  void count_chunks() {
    int64_t chunk = 0;
    for (int64_t row_head = 0; row_head < row_heads(); ++row_head) {
      first_chunk_[row_head] = chunk;
      while (chunk < chunk_count() && chunks_[chunk].row_head == row_head) ++chunk;
      new (&unfinished_[row_head]) std::atomic<int64_t>(chunk - first_chunk_[row_head]);
    }
    first_chunk_[row_heads()] = chunk;
  }

  void run_chunk(int64_t index, int slot) const {
    const Chunk& chunk = chunks_[index];
    const ChunkFunction* functions = chunk.part ? kernels_.packed : kernels_.dense;
    functions[args_.dtype](shape_, chunk, queries_of(chunk.row_head), scratch_[slot], partial(index));
    // The thread that finishes the last chunk of a KV head merges it: no barrier, and its results are still in cache.
    if (unfinished_[chunk.row_head].fetch_sub(1, std::memory_order_acq_rel) == 1) merge(chunk.row_head);
  }

  // Those without any chunk, of which no query sees a token.
  void merge_unseen() const {
    for (int64_t row_head = 0; row_head < row_heads(); ++row_head) {
      if (first_chunk_[row_head] == first_chunk_[row_head + 1]) merge(row_head);
    }
  }

  Partial partial(int64_t chunk) const {
    return {partials_.max + chunk * shape_.stats_width(), partials_.sum + chunk * shape_.stats_width(),
            partials_.acc + chunk * shape_.acc_size()};
  }

  Queries queries_of(int64_t row_head) const {
    const int64_t row = row_head / args_.heads, head = row_head % args_.heads;
    const int64_t element = row * args_.query_row_stride + head * args_.group_size * args_.query_head_stride +
                            slice_.first * args_.query_token_stride;
    return {static_cast<const char*>(args_.query) + element * kElementBytes[args_.dtype], args_.query_head_stride,
            args_.query_token_stride};
  }

  void merge(int64_t row_head) const {
    const int64_t row = row_head / args_.heads, query_head = row_head % args_.heads * args_.group_size;
    const int64_t first = first_chunk_[row_head], token_stride = args_.heads * args_.group_size * args_.value_dim;
    const int64_t element = (row * args_.queries + slice_.first) * token_stride + query_head * args_.value_dim;
    const HeadPartials partials{first_chunk_[row_head + 1] - first, partial(first),
                                args_.sinks ? args_.sinks + query_head : nullptr};
    void* output = static_cast<char*>(args_.output) + element * kElementBytes[args_.dtype];
    kernels_.merge[args_.dtype](shape_, partials, {output, token_stride});
  }

  const winnow_decode_args& args_;
  Slice slice_;
  const Kernels& kernels_;
  Shape shape_;
  int threads_;
  std::vector<Chunk>& chunks_;

  Partial partials_;                  // those of all chunks, one after another
  int64_t* first_chunk_;              // [row_heads + 1]
  std::atomic<int64_t>* unfinished_;  // [row_heads] chunks to go
  Scratch* scratch_;                  // [threads]
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
