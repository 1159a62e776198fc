#include <algorithm>
#include <atomic>
#include <new>

#include "append/append.hpp"
#include "attend/arguments.hpp"
#include "attend/attend.hpp"
#include "convolution/contract.hpp"
#include "delta/contract.hpp"
#include "latent/latent.hpp"
#include "linear/active.hpp"
#include "linear/contract.hpp"
#include "linear/many_rows.hpp"
#include "linear/mix.hpp"
#include "linear/stack.hpp"
#include "norm/contract.hpp"
#include "prefill/job.hpp"
#include "runtime/dispatch.hpp"
#include "runtime/pool.hpp"
#include "runtime/rows.hpp"
#include "runtime/workspace.hpp"
#include "scan/contract.hpp"
#include "sizes.hpp"
#include "winnow_native.h"

namespace {

// Bytes that a thread reads at a time.
constexpr int64_t kReadBlock = 256 * 1024;
constexpr int64_t kProductBlock = 1024 * 1024;

// Bytes of rows that a thread normalizes, or of tokens that it turns, at a time.
constexpr int64_t kRowBytes = 32 * 1024;

// Queries of a KV head for which laying a prompt's rows anew is worth its time.
constexpr int64_t kFewestLaid = 64;

// The status of work that may find no memory.
template <class Work>
int32_t with_memory(Work work) {
  try {
    work();
  } catch (const std::bad_alloc&) {
    return WINNOW_NO_MEMORY;
  }
  return WINNOW_OK;
}

int32_t on_rows(const winnow_prune_args& args, winnow::PruneFunction function) {
  const int64_t floats = winnow::prune_floats(args.dim);
  return with_memory([&] { winnow::run_on_rows(args, winnow::kPrunedAtOnce, floats, function); });
}

void normalize(const winnow_norm& norm, int64_t count, const winnow::NormRows& rows, int32_t threads) {
  const auto function = winnow::active_kernels().normalize[norm.dtype];
  const int64_t block = winnow::divide_up(kRowBytes, norm.width * winnow::kElementBytes[norm.dtype]);
  winnow::run_blocks(threads, count, block, [&](int, int64_t first, int64_t last) { function(norm, rows, first, last); });
}

// Blocks of states that a thread takes at a time, whole heads. A single token's time is that of their memory: each thread takes
// one share, as it did the last time, so that threads fetch nothing from each other's caches.
int64_t states_at_once(int64_t blocks, int64_t of_head, int64_t tokens, int32_t threads) {
  return blocks && tokens == 1 ? winnow::round_up(winnow::divide_up(blocks, threads), of_head) : 1;
}

#define WINNOW_NAMED(value) {#value, value}
constexpr winnow_constant contract[] = {
    WINNOW_NAMED(WINNOW_ABI),
    WINNOW_NAMED(WINNOW_SCALE_GROUP),
    WINNOW_NAMED(WINNOW_START_STEP),
    WINNOW_NAMED(WINNOW_BLOCK_BYTES),
    WINNOW_NAMED(WINNOW_LINEAR_OUTPUTS),
    WINNOW_NAMED(WINNOW_DRAWS),
    WINNOW_NAMED(WINNOW_DELTA_KEYS),
    WINNOW_NAMED(WINNOW_TAPS),
    WINNOW_NAMED(WINNOW_SCAN_STATE),
    WINNOW_NAMED(WINNOW_F32),
    WINNOW_NAMED(WINNOW_BF16),
    WINNOW_NAMED(WINNOW_F16),
    WINNOW_NAMED(WINNOW_NO_MEMORY),
    WINNOW_NAMED(WINNOW_BAD_PART),
    WINNOW_NAMED(WINNOW_BAD_LAYER),
    WINNOW_NAMED(WINNOW_CALL_DECODE),
    WINNOW_NAMED(WINNOW_CALL_STEP),
    WINNOW_NAMED(WINNOW_CALL_LINEAR),
    WINNOW_NAMED(WINNOW_CALL_LINEAR_OF_STACK),
    WINNOW_NAMED(WINNOW_CALL_MIX),
    WINNOW_NAMED(WINNOW_CALL_GATED),
    WINNOW_NAMED(WINNOW_CALL_NORMALIZE),
    WINNOW_NAMED(WINNOW_CALL_NORMALIZE_SUMS),
    WINNOW_NAMED(WINNOW_CALL_ROTARY),
    WINNOW_NAMED(WINNOW_CALL_DELTA),
    WINNOW_NAMED(WINNOW_CALL_CONVOLVE),
    WINNOW_NAMED(WINNOW_CALL_NORMALIZE_GATED),
    WINNOW_NAMED(WINNOW_CALL_SCAN),
    WINNOW_NAMED(WINNOW_SWISH),
    WINNOW_NAMED(WINNOW_GELU_TANH),
    WINNOW_NAMED(WINNOW_GELU),
    WINNOW_NAMED(WINNOW_HALVES),
    WINNOW_NAMED(WINNOW_INTERLEAVED),
    WINNOW_NAMED(WINNOW_COMPLEX),
    WINNOW_NAMED(WINNOW_UNSCALED),
    WINNOW_NAMED(WINNOW_PER_SLOT),
    WINNOW_NAMED(WINNOW_GROUPED),
    WINNOW_NAMED(WINNOW_CHANNEL_GROUPS),
    WINNOW_NAMED(WINNOW_PRUNED_SIZES),
    WINNOW_NAMED(WINNOW_PRUNED_NUMBERS),
    WINNOW_NAMED(WINNOW_MEAN),
    WINNOW_NAMED(WINNOW_MOMENTS),
    WINNOW_NAMED(WINNOW_PRUNED_RMS),
    WINNOW_NAMED(WINNOW_PRUNED_MOMENTS),
    WINNOW_NAMED(WINNOW_DEGENERATE),
    WINNOW_NAMED(WINNOW_GAUSSIAN),
    WINNOW_NAMED(WINNOW_EXPONENTIAL),
    WINNOW_NAMED(WINNOW_TRUNCATED_GAUSSIAN),
    WINNOW_NAMED(WINNOW_TRUNCATED_EXPONENTIAL),
    WINNOW_NAMED(WINNOW_CONSTANT),
    WINNOW_NAMED(sizeof(winnow_rows)),
    WINNOW_NAMED(sizeof(winnow_part)),
    WINNOW_NAMED(sizeof(winnow_latent)),
    WINNOW_NAMED(sizeof(winnow_ring)),
    WINNOW_NAMED(sizeof(winnow_decode_args)),
    WINNOW_NAMED(sizeof(winnow_prune_args)),
    WINNOW_NAMED(sizeof(winnow_rotate_args)),
    WINNOW_NAMED(sizeof(winnow_append_args)),
    WINNOW_NAMED(sizeof(winnow_step_args)),
    WINNOW_NAMED(sizeof(winnow_prefill_args)),
    WINNOW_NAMED(sizeof(winnow_linear_layer)),
    WINNOW_NAMED(sizeof(winnow_linear_stack)),
    WINNOW_NAMED(sizeof(winnow_gate)),
    WINNOW_NAMED(sizeof(winnow_mixture)),
    WINNOW_NAMED(sizeof(winnow_gated_layers)),
    WINNOW_NAMED(sizeof(winnow_norm)),
    WINNOW_NAMED(sizeof(winnow_rotary_rows)),
    WINNOW_NAMED(sizeof(winnow_rotary_args)),
    WINNOW_NAMED(sizeof(winnow_delta_args)),
    WINNOW_NAMED(sizeof(winnow_convolution_args)),
    WINNOW_NAMED(sizeof(winnow_scan_args)),
    WINNOW_NAMED(sizeof(winnow_call)),
    {nullptr, 0},
};

}  // namespace

extern "C" {

const winnow_constant* winnow_contract(void) { return contract; }

int32_t winnow_decode(const winnow_decode_args* args) {
  if (!winnow::lengths_fit(*args)) return WINNOW_BAD_LENGTH;
  if (!winnow::parts_fit(*args)) return WINNOW_BAD_PART;
  return with_memory([&] { args->latent ? winnow::attend_latents(*args) : winnow::attend(*args); });
}

int32_t winnow_prune(const winnow_prune_args* args) {
  return on_rows(*args, winnow::active_kernels().prune[args->dtype]);
}

int32_t winnow_take(const winnow_prune_args* args) {
  return on_rows(*args, winnow::active_kernels().take[args->dtype]);
}

int32_t winnow_rotate(const winnow_rotate_args* args) {
  const auto rotate = winnow::active_kernels().rotate[args->dtype];
  const int64_t floats = winnow::rotate_floats(args->dim);
  return with_memory([&] { winnow::run_on_rows(*args, winnow::kRotatedAtOnce, floats, rotate); });
}

int32_t winnow_append(const winnow_append_args* args) {
  return winnow::append(*args) ? WINNOW_OK : WINNOW_BAD_LENGTH;
}

void winnow_lend_threads(void (*team)(void (*)(void*), void*, unsigned, unsigned), int (*number)(void)) {
  winnow::lend_threads(team, number);
}

int32_t winnow_step(winnow_step_args* args) {
  const bool has_ring = args->queries.first.target;
  args->tokens.first.source = args->keys;
  args->tokens.second.source = args->values;
  args->queries.first.source = args->decode.query = args->query;
  args->queries.column = args->column;
  args->decode.output = args->output;
  args->decode.threads = args->threads;
  if (has_ring && !winnow::has_room(args->queries)) return WINNOW_BAD_LENGTH;
  if (!winnow::append(args->tokens)) return WINNOW_BAD_LENGTH;
  if (has_ring) winnow::append(args->queries);
  return winnow_decode(&args->decode);
}

int32_t winnow_prefill(const winnow_prefill_args* args) {
  const int64_t window = args->window < args->tokens ? args->window : 0;
  const bool laid = args->output && winnow_prefill_lays(args->dtype, args->group_size * args->queries, window);
  const winnow::InstructionSet& isa = winnow::active_isa();
  const auto& kernel = laid ? *isa.matrix.prefill[args->dtype] : isa.kernels.prefill[args->dtype];
  return with_memory([&] { winnow::prefill_rows(*args, kernel); });
}

int32_t winnow_prefill_lays(int32_t dtype, int64_t queries, int64_t window) {
  const winnow::PrefillKernel* kernel = winnow::active_isa().matrix.prefill[dtype];
  return kernel && queries >= kFewestLaid && (!window || kernel->has_windows);
}

// All outputs of all rows. Throws std::bad_alloc.
static void multiply_rows(const winnow_linear_layer& layer, const winnow::LinearRows& all, int32_t threads) {
  if (const auto* many = winnow::kernel_of_many(layer, all.count)) {
    return winnow::multiply_many_rows({layer, *many}, all, winnow::threads_for(layer, all.count * layer.outputs, threads));
  }
  const auto linear = winnow::linear_of(layer);
  winnow::run_pieces(winnow::threads_for(layer, layer.outputs, threads), layer.outputs, winnow::kOutputsAtOnce,
                     [&](int, int64_t first, int64_t last) { linear(layer, all, first, last); });
}

int32_t winnow_linear(const winnow_linear_layer* layer, int64_t rows, const void* inputs, void* outputs,
                      int32_t threads) {
  if (!winnow::linear_of(*layer)) return WINNOW_UNKNOWN_ISA;
  return with_memory([&] { multiply_rows(*layer, {rows, inputs, outputs}, threads); });
}

int32_t winnow_linear_of_stack(const winnow_linear_stack* stack, int64_t rows, const int64_t* layers, const void* inputs,
                               void* outputs, int32_t threads) {
  thread_local winnow::Workspace workspace;
  const winnow_linear_layer& alike = stack->first;
  const auto linear = winnow::linear_of(alike);
  if (!linear) return WINNOW_UNKNOWN_ISA;
  if (!winnow::has_layers(*stack, layers, rows)) return WINNOW_BAD_LAYER;
  return with_memory([&] {
    auto* runs = reinterpret_cast<winnow::Run*>(workspace.reserve(rows * static_cast<int64_t>(sizeof(winnow::Run))));
    const int64_t number = winnow::find_runs(layers, rows, runs);
    const winnow::LinearRows all{rows, inputs, outputs};
    const auto rows_of = [&](const winnow::Run& run) { return winnow::part_of(alike, all, run.first, run.count); };
    const int team = winnow::threads_for(alike, number * alike.outputs, threads);
    winnow::run_outputs(team, runs, number, alike.outputs, [&](const winnow::Run& run, int64_t first, int64_t last) {
      if (winnow::kernel_of_many(alike, run.count)) return;
      linear(winnow::layer_of(*stack, run.layer), rows_of(run), first, last);
    });
    for (int64_t i = 0; i < number; ++i) {
      const auto* many = winnow::kernel_of_many(alike, runs[i].count);
      if (many) winnow::multiply_many_rows({winnow::layer_of(*stack, runs[i].layer), *many}, rows_of(runs[i]), threads);
    }
  });
}

int32_t winnow_mix(const winnow_mixture* mixture, int64_t tokens, const int64_t* experts, const float* weights,
                   const void* inputs, void* outputs, int32_t threads) {
  if (!winnow::linear_of(mixture->enter.first) || !winnow::linear_of(mixture->leave.first)) return WINNOW_UNKNOWN_ISA;
  if (!winnow::is_defined(mixture->gate)) return WINNOW_BAD_GATE;
  if (!winnow::has_layers(mixture->enter, experts, tokens * mixture->chosen)) return WINNOW_BAD_LAYER;
  return with_memory([&] { winnow::mix(*mixture, tokens, experts, weights, inputs, outputs, threads); });
}

int32_t winnow_multiplies_many(int32_t dtype) { return winnow::active_matrix().many_rows.plain[dtype].multiply != nullptr; }

int64_t winnow_nibble_outputs(int32_t dtype) { return winnow::active_kernels().linear_few_bits[dtype].outputs; }

int32_t winnow_gated(const winnow_gated_layers* layers, int64_t rows, const void* inputs, void* outputs, int32_t threads) {
  thread_local winnow::Workspace workspace;
  const winnow_linear_layer &of_gate = layers->gate, &of_up = layers->up;
  const auto gate_linear = winnow::linear_of(of_gate), up_linear = winnow::linear_of(of_up);
  if (!gate_linear || !up_linear) return WINNOW_UNKNOWN_ISA;
  if (!winnow::is_defined(layers->by)) return WINNOW_BAD_GATE;
  const auto gate = winnow::active_kernels().gate[of_up.dtype];
  const winnow::LinearRows all{rows, inputs, outputs};
  const auto *many_gates = winnow::kernel_of_many(of_gate, rows), *many_ups = winnow::kernel_of_many(of_up, rows);
  if (many_gates && many_ups) {
    const int team = winnow::threads_for(of_up, rows * of_up.outputs, threads);
    return with_memory([&] {
      winnow::gate_many_rows({of_gate, *many_gates}, {of_up, *many_ups}, layers->by, all, team);
    });
  }
  return with_memory([&] {
    void* gates = workspace.reserve(rows * of_gate.outputs * winnow::kElementBytes[of_gate.dtype]);
    const winnow::LinearRows all_gates{rows, inputs, gates};
    const winnow::GatedRows gated{rows, of_up.outputs, gates, outputs, outputs, of_up.outputs};
    const int team = winnow::threads_for(of_up, of_up.outputs, threads);
    if (many_gates || many_ups) {  // each in its own way
      multiply_rows(of_gate, all_gates, threads);
      multiply_rows(of_up, all, threads);
      winnow::run_pieces(team, of_up.outputs, winnow::kOutputsAtOnce,
                         [&](int, int64_t first, int64_t last) { gate(layers->by, gated, first, last); });
      return;
    }
    winnow::run_pieces(team, of_up.outputs, winnow::kOutputsAtOnce,
                       [&](int, int64_t first, int64_t last) {
                         gate_linear(of_gate, all_gates, first, last);
                         up_linear(of_up, all, first, last);
                         gate(layers->by, gated, first, last);
                       });
  });
}

int32_t winnow_write_out(const winnow_linear_layer* layer, int64_t first, int64_t last, void* to, int32_t threads) {
  const auto write_out = winnow::active_kernels().write_out_int4;
  if (!write_out || layer->bits != 4 || layer->dtype != WINNOW_BF16) return WINNOW_UNKNOWN_ISA;
  winnow::run_blocks(winnow::threads_for(*layer, last - first, threads), layer->inputs / WINNOW_SCALE_GROUP, 1,
                     [&](int, int64_t from, int64_t to_group) { write_out(*layer, {first, last, to}, from, to_group); });
  return WINNOW_OK;
}

int32_t winnow_normalize(const winnow_norm* norm, int64_t rows, const void* inputs, void* outputs, int32_t threads) {
  normalize(*norm, rows, {inputs, nullptr, nullptr, nullptr, outputs}, threads);
  return WINNOW_OK;
}

int32_t winnow_normalize_sums(const winnow_norm* norm, int64_t rows, const void* inputs, const void* others, void* sums,
                              void* outputs, int32_t threads) {
  normalize(*norm, rows, {inputs, others, sums, nullptr, outputs}, threads);
  return WINNOW_OK;
}

int32_t winnow_normalize_gated(const winnow_norm* norm, int64_t rows, const void* inputs, const void* gates, void* outputs,
                               int32_t threads) {
  normalize(*norm, rows, {inputs, nullptr, nullptr, gates, outputs}, threads);
  return WINNOW_OK;
}

int32_t winnow_rotary(const winnow_rotary_args* args) {
  const auto rotary = winnow::active_kernels().rotary[args->dtype];
  const int64_t heads = args->queries.heads + args->keys.heads, tokens = args->rows * args->tokens;
  const int64_t block = winnow::divide_up(kRowBytes, heads * (args->dim + args->rest) * winnow::kElementBytes[args->dtype]);
  winnow::run_blocks(args->threads, tokens, block, [&](int, int64_t first, int64_t last) { rotary(*args, first, last); });
  return WINNOW_OK;
}

int32_t winnow_delta(const winnow_delta_args* args) {
  if (args->key_dim > WINNOW_DELTA_KEYS) return WINNOW_BAD_SIZE;
  const winnow::DeltaKernel& kernel = winnow::active_kernels().delta[args->dtype];
  const int64_t blocks = args->tokens ? winnow::delta_blocks(kernel, *args) : 0;
  const int64_t of_head = winnow::divide_up(args->value_dim, kernel.columns);
  const int64_t at_once = states_at_once(blocks, of_head, args->tokens, args->threads);
  winnow::run_blocks(args->threads, blocks, at_once, [&](int, int64_t first, int64_t last) { kernel.run(*args, first, last); });
  return WINNOW_OK;
}

int32_t winnow_convolve(const winnow_convolution_args* args) {
  if (args->taps < 2 || args->taps > WINNOW_TAPS) return WINNOW_BAD_SIZE;
  if (args->states && args->state_length < args->taps - 1) return WINNOW_BAD_SIZE;
  const winnow::ConvolutionKernel& kernel = winnow::active_kernels().convolution[args->dtype];
  const auto run = [&](winnow::ConvolutionFunction function, int64_t tiles, int64_t block) {
    winnow::run_blocks(args->threads, tiles, block, [&](int, int64_t first, int64_t last) { function(*args, first, last); });
  };
  // A tile of one token reads few bytes, and most of them are taps and states.
  const int64_t numbers = winnow::least(args->tokens, winnow::kConvolvedTokens) + args->taps + args->state_length;
  const int64_t bytes = winnow::kConvolvedChannels * numbers * winnow::kElementBytes[args->dtype];
  const int64_t tiles = winnow::convolved_tiles(*args);
  const int64_t block = std::max(winnow::divide_up(kRowBytes, bytes), states_at_once(tiles, 1, args->tokens, args->threads));
  run(kernel.convolve, tiles, block);
  if (args->states && !winnow::moves_at_once(*args)) run(kernel.move_on, winnow::channel_tiles(*args), block);
  return WINNOW_OK;
}

int32_t winnow_scan(const winnow_scan_args* args) {
  if (args->state_dim < 1 || args->state_dim > WINNOW_SCAN_STATE) return WINNOW_BAD_SIZE;
  const winnow::ScanKernel& kernel = winnow::active_kernels().scan[args->dtype];
  const int64_t blocks = args->tokens ? winnow::scan_blocks(kernel, *args) : 0;
  const int64_t at_once = states_at_once(blocks, 1, args->tokens, args->threads);
  winnow::run_blocks(args->threads, blocks, at_once, [&](int, int64_t first, int64_t last) { kernel.run(*args, first, last); });
  return WINNOW_OK;
}

const char* winnow_isa(void) { return winnow::active_isa().name; }

int32_t winnow_select_isa(const char* name) {
  return winnow::select_isa(name) ? WINNOW_OK : WINNOW_UNKNOWN_ISA;
}

int64_t winnow_read_sum(const void* data, int64_t bytes, int32_t threads) {
  const auto read = winnow::active_kernels().read;
  std::atomic<int64_t> sum{0};
  winnow::run_pieces(threads, bytes, kReadBlock, [&](int, int64_t first, int64_t last) {
    sum += read(static_cast<const char*>(data) + first, last - first);
  });
  return sum;
}

int64_t winnow_multiply(int64_t products, int32_t bits, int32_t dtype, int32_t threads) {
  const auto multiply = winnow::active_matrix().multiply;
  std::atomic<int64_t> done{0};
  winnow::run_pieces(threads, products, kProductBlock,
                     [&](int, int64_t first, int64_t last) { done += multiply(last - first, bits, dtype); });
  return done;
}

}  // extern "C"
