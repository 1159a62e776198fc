// State scan, a block of a head's channels at a time: it stays next to the processor while tokens go through it, a few at once.
#pragma once

#include <cstdint>

#include "scan/channels.hpp"
#include "scan/contract.hpp"
#include "scan/head.hpp"
#include "scan/steps.hpp"
#include "scan/tokens.hpp"
#include "simd/processor.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Tokens together, where there are registers for them: alone, each would store the state as often as all do.
constexpr int kScanTokens = Vec::width == 16 ? 4 : 2;

// Numbers of a block: two thirds of a first-level cache of 48 KB, and half of one of 32 KB.
constexpr int64_t kScanNumbers = Vec::width == 16 && kZenGeneration != 4 ? 8192 : 4096;

// States of a block, where they lie, or in a copy with zeros up to whole vectors.
struct ScanStates {
  float* numbers;
  int64_t stride;
  float* spare;  // in the place of channels behind the last
  float* of(int64_t channel, int64_t channels) const { return channel < channels ? numbers + channel * stride : spare; }
};

// Inputs of channels from the first on, for so many tokens.
template <int kTokens, class T>
inline void enter_inputs(const winnow_scan_args& args, const ScanHead<T>& head, int64_t token, int64_t first,
                         const ScanTokens<kTokens>& tokens, Vec (&inputs)[kTokens], ScanChannels<kTokens>& channels) {
  for (int t = 0; t < kTokens; ++t) {
    const T* at = head.inputs + (token + t) * args.input_token + first;
    inputs[t] = token + t < args.tokens ? load_up_to(at, head.channels - first) : broadcast(0.0f);
    store(channels.adds[t], inputs[t] * broadcast(tokens.steps[t]) * broadcast(tokens.added[t]));
  }
}

template <class T>
inline void store_outputs(const winnow_scan_args& args, int64_t at, Vec outputs, int64_t count) {
  args.outputs_f32 ? store_up_to(static_cast<float*>(args.outputs) + at, outputs, count)
                   : store_up_to(static_cast<T*>(args.outputs) + at, outputs, count);
}

// Outputs of channels from the first on: what states had for tokens, and what tokens had for those after them.
template <int kTokens, class T>
inline void leave_outputs(const winnow_scan_args& args, const ScanHead<T>& head, int64_t token, int64_t first,
                          const ScanTokens<kTokens>& tokens, const Vec (&inputs)[kTokens],
                          const ScanChannels<kTokens>& channels) {
  Vec stepped[kTokens];
  for (int t = 0; t < kTokens && token + t < args.tokens; ++t) {
    stepped[t] = inputs[t] * broadcast(tokens.steps[t]);
    Vec output = row_sums(channels.found[t]) * broadcast(tokens.known[t]);
    for (int s = 0; s <= t; ++s) output = fma(stepped[s], broadcast(tokens.read[t][s]), output);
    if (args.through) output = fma(inputs[t], broadcast(head.through), output);
    store_outputs<T>(args, head.first_output + (token + t) * args.heads * args.dim + first, output, head.channels - first);
  }
}

// Tokens from one on go through all states of a block.
template <int kTokens, class T>
void go_through(const winnow_scan_args& args, const ScanHead<T>& head, const ScanStates& states, int64_t token,
                const ScanSteps& steps) {
  ScanTokens<kTokens> tokens;
  ScanChannels<kTokens> channels;
  read_tokens(args, head, token, steps, tokens);
  for (int64_t first = 0; first < head.channels; first += Vec::width) {
    Vec inputs[kTokens];
    enter_inputs(args, head, token, first, tokens, inputs, channels);
    for (int64_t r = 0; r < Vec::width; r += kScanRows) {
      float* rows[kScanRows];
      for (int i = 0; i < kScanRows; ++i) rows[i] = states.of(first + r + i, head.channels);
      change_states(rows, states.stride, tokens, r, channels);
    }
    leave_outputs(args, head, token, first, tokens, inputs, channels);
  }
}

template <class T>
void scan_tokens(const winnow_scan_args& args, const ScanHead<T>& head, const ScanStates& states) {
  ScanSteps steps;
  for (int64_t token = 0; token < args.tokens; token += kScanTokens) {
    if (token % Vec::width == 0) read_steps(args, head, token, steps);
    const auto run = token + 1 < args.tokens ? go_through<kScanTokens, T> : go_through<1, T>;
    run(args, head, states, token, steps);
  }
}

// The same where states do not fill whole vectors: in a copy.
template <class T>
void scan_padded(const winnow_scan_args& args, const ScanHead<T>& head, float* spare) {
  alignas(64) float copy[kScanNumbers];
  const int64_t dim = args.state_dim, stride = round_up(dim, Vec::width);
  for (int64_t c = 0; c < head.channels; ++c) widen_numbers(head.states + c * dim, dim, copy + c * stride);
  scan_tokens(args, head, {copy, stride, spare});
  for (int64_t c = 0; c < head.channels; ++c) {
    for (int64_t i = 0; i < dim; i += Vec::width) store_up_to(head.states + c * dim + i, load(copy + c * stride + i), dim - i);
  }
}

template <class T>
void scan(const winnow_scan_args& args, int64_t first, int64_t last) {
  alignas(64) float spare[WINNOW_SCAN_STATE] = {};
  const int64_t most = scan_channels(kScanNumbers, args.state_dim), blocks = divide_up(args.dim, most);
  for (int64_t each = first; each < last; ++each) {
    const int64_t number = each / blocks, channel = each % blocks * most;
    const auto head = scan_head<T>(args, number / args.heads, number % args.heads, channel, least(most, args.dim - channel));
    if (args.state_dim % Vec::width) {
      scan_padded(args, head, spare);
    } else {
      scan_tokens(args, head, {head.states, args.state_dim, spare});
    }
  }
}

template <class T>
constexpr ScanKernel kScan{scan<T>, kScanNumbers};

}  // namespace
}  // namespace winnow
