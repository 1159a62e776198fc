#include "attend/attend.hpp"

#include <algorithm>
#include <atomic>
#include <vector>

#include "attend/contract.hpp"
#include "attend/cutting.hpp"
#include "attend/sharing.hpp"
#include "latent/scratch.hpp"
#include "matrix/amx/sizes.hpp"
#include "matrix/sizes.hpp"
#include "packed/scratch.hpp"
#include "runtime/dispatch.hpp"
#include "runtime/pool.hpp"
#include "runtime/red_zones.hpp"
#include "runtime/workspace.hpp"

namespace winnow {
namespace {

// Below this many bytes of keys and values, a second thread costs more than it saves: one that is awake, as those of a
// lent team are, and one that has to be woken.
constexpr int64_t kAwakeBytes = 128 * 1024;
constexpr int64_t kWokenBytes = 512 * 1024;

// More queries per KV head than this are done in slices, which bounds the memory for partial results.
constexpr int64_t kSliceQueries = 256;

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

// Sizes as chunk functions know them: latents are both what queries meet first and what is summed up.
Shape shape_of_call(const winnow_decode_args& args, Slice slice) {
  const int64_t asked = args.latent ? args.key_dim + args.value_dim : args.key_dim;
  const int64_t summed = args.latent ? args.key_dim : args.value_dim;
  return {args.group_size * slice.count, args.group_size, asked, summed, round_up(asked, 16), round_up(summed, 16),
          args.scaling, args.softcap};
}

// One call, or one slice of it: all that the threads share.
class Job {
 public:
  Job(const winnow_decode_args& args, Slice slice, Sharing& sharing, Chunks& chunks, Workspace& workspace)
      : args_(args),
        slice_(slice),
        isa_(active_isa()),
        shape_(shape_of_call(args, slice)),
        chunks_(chunks) {
    const Cutting cutting(args, slice, sharing);
    const Amount amount = cutting.amount();
    threads_ = amount.read < (threads_are_lent() ? kAwakeBytes : kWokenBytes) ? 1 : std::max(args.threads, 1);
    cutting.cut(amount.held, threads_, chunks);
    measure();
    Layout measured(nullptr);
    lay_out(measured);
    Layout real(workspace.reserve(measured.used()));
    lay_out(real);
    hand_out();
  }

  void run() const {
    run_blocks(threads_, chunks_.count(), 1, [&](int slot, int64_t chunk, int64_t) { run_chunk(chunk, slot); });
    merge_unseen();
  }

 private:
  int64_t row_heads() const { return args_.rows * args_.heads; }
  int64_t row_head(int64_t row, int64_t head) const { return row * args_.heads + head; }

  // The shape of a chunk's work: with the queries of all its readers.
  Shape shape_of(const Chunk& chunk) const {
    Shape shape = shape_;
    shape.queries *= chunk.readers;
    return shape;
  }

  // body(row, reader) for all rows that read a chunk.
  template <class Body>
  void for_readers(const Chunk& chunk, const Body& body) const {
    for (int64_t i = 0; i < chunk.readers; ++i) body(chunks_.readers[chunk.first_reader + i], i);
  }

  // What all chunks need together.
  struct Needs {
    int64_t stats = 0, acc = 0, pieces = 0;
    int64_t matrix_queries = 0;  // at most, of a chunk that is a product of matrices
    bool packed = false;
  };

  void measure() {
    for (const Chunk& chunk : chunks_.all) {
      const Shape shape = shape_of(chunk);
      needs_.stats += shape.stats_width();
      needs_.acc += shape.acc_size();
      needs_.pieces += chunk.readers;
      needs_.packed |= chunk.part != nullptr;
      if (is_matrix(shape, chunk)) needs_.matrix_queries = std::max(needs_.matrix_queries, shape.queries);
    }
  }

  bool is_matrix(const Shape& shape, const Chunk& chunk) const {
    return args_.latent || isa_.matrix.serves[args_.dtype](shape, chunk);
  }

  void lay_out(Layout& layout) {
    numbers_.max = layout.take<float>(needs_.stats);
    numbers_.sum = layout.take<float>(needs_.stats);
    numbers_.acc = layout.take<float>(needs_.acc);
    partials_ = layout.take<Partial>(chunks_.count());
    pieces_ = layout.take<Partial>(needs_.pieces);
    weights_ = layout.take<float>(needs_.pieces * shape_.stats_width());
    first_piece_ = layout.take<int64_t>(row_heads() + 1);
    unfinished_ = layout.take<std::atomic<int64_t>>(row_heads());
    scratch_ = layout.take<Scratch>(threads_);
    Shape widest = shape_;
    widest.queries = needs_.matrix_queries;
    const bool many = needs_.matrix_queries > 0;
    const int64_t matrix = !many ? 0 : args_.latent ? latent_floats(widest) : matrix_floats(widest);
    for (int slot = 0; slot < threads_; ++slot) {
      const Scratch own{layout.take<float>(kQueryPad * shape_.query_width), layout.take<float>(kQueryPad * kLogitStride),
                        layout.take<float>(kQueryPad * shape_.query_width),
                        layout.take<float>(needs_.packed ? packed_floats(shape_) : 0),
                        layout.take<float>(matrix),
                        layout.take<uint32_t>(many && !args_.latent ? tile_words(widest) : 0)};
      if (layout.is_real()) scratch_[slot] = own;
    }
  }

  // Gives every chunk memory for its partial results, and every (row, KV head) the list of its pieces of these.
  void hand_out() {
    std::fill(first_piece_, first_piece_ + row_heads() + 1, 0);
    Partial next = numbers_;
    for (int64_t i = 0; i < chunks_.count(); ++i) {
      const Chunk& chunk = chunks_.all[i];
      const Shape shape = shape_of(chunk);
      partials_[i] = next;
      next = {next.max + shape.stats_width(), next.sum + shape.stats_width(), next.acc + shape.acc_size()};
      for_readers(chunk, [&](int64_t row, int64_t) { ++first_piece_[row_head(row, chunk.head) + 1]; });
    }
    for (int64_t i = 0; i < row_heads(); ++i) {
      new (&unfinished_[i]) std::atomic<int64_t>(0);
      first_piece_[i + 1] += first_piece_[i];
    }
    for (int64_t i = 0; i < chunks_.count(); ++i) {
      const Chunk& chunk = chunks_.all[i];
      for_readers(chunk, [&](int64_t row, int64_t reader) {
        const int64_t owner = row_head(row, chunk.head), query = reader * shape_.queries;
        const int64_t taken = unfinished_[owner].fetch_add(1, std::memory_order_relaxed);
        pieces_[first_piece_[owner] + taken] = {partials_[i].max + query, partials_[i].sum + query,
                                                partials_[i].acc + query * shape_.value_width};
      });
    }
  }

  void run_chunk(int64_t index, int slot) const {
    const Chunk& chunk = chunks_.all[index];
    const Shape shape = shape_of(chunk);
    functions_for(shape, chunk)[args_.dtype](shape, chunk, queries_of(chunk), scratch_[slot], partials_[index]);
    // The thread that finishes the last chunk of a KV head merges it: no barrier, and its results are still in cache.
    for_readers(chunk, [&](int64_t row, int64_t) {
      if (unfinished_[row_head(row, chunk.head)].fetch_sub(1, std::memory_order_acq_rel) == 1) merge(row, chunk.head);
    });
  }

  const ChunkFunction* functions_for(const Shape& shape, const Chunk& chunk) const {
    if (args_.latent) return chunk.part ? isa_.packed.latent : isa_.matrix.latent;
    if (is_matrix(shape, chunk)) return chunk.part ? isa_.matrix.packed : isa_.matrix.dense;
    return chunk.part ? isa_.packed.chunk : isa_.kernels.dense;
  }

  // Those without any chunk, of which no query sees a token.
  void merge_unseen() const {
    for (int64_t i = 0; i < row_heads(); ++i) {
      if (first_piece_[i] == first_piece_[i + 1]) merge(i / args_.heads, i % args_.heads);
    }
  }

  Queries queries_of(const Chunk& chunk) const {
    const int64_t element =
        chunk.head * args_.group_size * args_.query_head_stride + slice_.first * args_.query_token_stride;
    return {static_cast<const char*>(args_.query) + element * kElementBytes[args_.dtype], args_.query_head_stride,
            args_.query_token_stride, args_.query_row_stride, chunks_.readers.data() + chunk.first_reader,
            slice_.count};
  }

  void merge(int64_t row, int64_t head) const {
    const int64_t query_head = head * args_.group_size, owner = row_head(row, head), first = first_piece_[owner];
    const int64_t token_stride = args_.heads * args_.group_size * shape_.value_dim;
    const int64_t element = (row * args_.queries + slice_.first) * token_stride + query_head * shape_.value_dim;
    const HeadPartials partials{first_piece_[owner + 1] - first, pieces_ + first,
                                weights_ + first * shape_.stats_width(),
                                args_.sinks ? args_.sinks + query_head : nullptr};
    void* output = static_cast<char*>(args_.output) + element * kElementBytes[args_.dtype];
    isa_.kernels.merge[args_.dtype](shape_, partials, {output, token_stride});
  }

  const winnow_decode_args& args_;
  Slice slice_;
  const InstructionSet& isa_;
  Shape shape_;  // of a chunk that one row reads
  int threads_;
  const Chunks& chunks_;
  Needs needs_;

  Partial numbers_;                   // those of all chunks, one after another
  Partial* partials_;                 // [chunks]
  Partial* pieces_;                   // [first_piece_[row_heads]]: what a row has of its chunks' partial results
  float* weights_;                    // [first_piece_[row_heads], stats_width]
  int64_t* first_piece_;              // [row_heads + 1]
  std::atomic<int64_t>* unfinished_;  // [row_heads] chunks to go
  Scratch* scratch_;                  // [threads]
};

}  // namespace

void attend(const winnow_decode_args& args) {
  thread_local Sharing sharing;
  thread_local Chunks chunks;
  thread_local Workspace workspace;
  sharing.find(args);
  const int64_t most = std::max<int64_t>(kSliceQueries / args.group_size, 1);
  for (int64_t first = 0; first < args.queries; first += most) {
    Job job(args, {first, std::min(most, args.queries - first)}, sharing, chunks, workspace);
    job.run();
  }
}

}  // namespace winnow
