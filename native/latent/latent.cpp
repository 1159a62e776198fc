#include "latent/latent.hpp"

#include <algorithm>

#include "attend/attend.hpp"
#include "latent/contract.hpp"
#include "runtime/dispatch.hpp"
#include "runtime/pool.hpp"
#include "runtime/workspace.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// A whole number of cache lines.
constexpr int64_t in_lines(int64_t bytes) { return round_up(bytes, 64); }

}  // namespace

void attend_latents(const winnow_decode_args& args) {
  thread_local Workspace workspace;
  const Kernels& kernels = active_kernels();
  const LatentKernel& kernel = (args.latent->bits == 8 ? kernels.latent_int8 : kernels.latent)[args.dtype];
  const int64_t heads = args.group_size, queries = args.rows * args.queries * heads;
  const int64_t bytes = kElementBytes[args.dtype], threads = std::clamp<int64_t>(args.threads, 1, heads);
  const int64_t asked_bytes = in_lines(queries * asked_dim(args) * bytes), sum_bytes = in_lines(queries * args.key_dim * bytes);
  const int64_t floats = round_up(head_floats(args), 16);
  char* asked = workspace.reserve(asked_bytes + sum_bytes + threads * floats * static_cast<int64_t>(sizeof(float)));
  char* sums = asked + asked_bytes;
  auto* memory = reinterpret_cast<float*>(sums + sum_bytes);
  const auto for_heads = [&](const auto& body) {
    run_pieces(static_cast<int>(threads), heads, 1, [&](int slot, int64_t head, int64_t) {
      body(head, head_scratch(args, memory + slot * floats));
    });
  };

  for_heads([&](int64_t head, const HeadScratch& scratch) { kernel.ask(args, head, asked, scratch); });
  winnow_decode_args inner = args;
  inner.query = asked;
  inner.query_head_stride = asked_dim(args);
  inner.query_token_stride = heads * inner.query_head_stride;
  inner.query_row_stride = args.queries * inner.query_token_stride;
  inner.output = sums;
  attend(inner);
  for_heads([&](int64_t head, const HeadScratch& scratch) { kernel.answer(args, head, sums, scratch); });
}

}  // namespace winnow
