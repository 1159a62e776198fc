// Causal convolution of channels, each by itself, with few taps: a tile of channels and tokens at a time.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "convolution/contract.hpp"
#include "linear/gate.hpp"
#include "simd/element.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Channels first to first + count - 1 of a row, and its tokens from `token` to before `end`.
struct ConvolvedTile {
  int64_t row, first, count, token, end;
};

inline ConvolvedTile tile_at(const winnow_convolution_args& args, int64_t number, int64_t tokens) {
  const int64_t across = divide_up(args.channels, kConvolvedChannels), down = divide_up(args.tokens, tokens);
  const int64_t first = number % across * kConvolvedChannels, token = number / across % down * tokens;
  return {number / across / down, first, least(kConvolvedChannels, args.channels - first), token,
          least(token + tokens, args.tokens)};
}

// Rows of a tile's channels, one for each tap or for each input before the first token.
template <class T>
struct TileRows {
  alignas(64) T at[WINNOW_TAPS][kConvolvedChannels];
};

// Numbers that are moved, and not computed with: compilers vectorize none that are structs.
template <class T>
using Moved = std::conditional_t<sizeof(T) == sizeof(uint16_t), uint16_t, T>;

template <class T>
inline const Moved<T>* moved(const T* numbers) {
  return reinterpret_cast<const Moved<T>*>(numbers);
}
template <class T>
inline Moved<T>* moved(T* numbers) {
  return reinterpret_cast<Moved<T>*>(numbers);
}

// Row r gets number r of every channel, of those that are beside each other: kStride, where it is known, as compilers have
// shuffles for 2, 3, 4 and 8, if all are read.
template <int kRows, int kStride, class T>
inline void transpose(const T* from, int64_t stride, int64_t count, TileRows<T>& rows) {
  if constexpr (kStride > 0) stride = kStride;
  const Moved<T>* __restrict numbers = moved(from);
  Moved<T>* __restrict to = moved(rows.at[0]);
  for (int64_t c = 0; c < count; ++c) {
    unroll<kRows>([&](auto r) __attribute__((always_inline)) { to[r * kConvolvedChannels + c] = numbers[c * stride + r]; });
  }
}

template <class T>
inline const T* inputs_at(const winnow_convolution_args& args, const ConvolvedTile& tile, int64_t token) {
  return static_cast<const T*>(args.inputs) + tile.row * args.input_row + token * args.input_token + tile.first;
}

template <class T>
inline T* states_of(const winnow_convolution_args& args, const ConvolvedTile& tile) {
  return static_cast<T*>(args.states) + (tile.row * args.channels + tile.first) * args.state_length;
}

// The inputs of the kTaps - 1 tokens before the first.
template <int kTaps, class T>
void read_states(const winnow_convolution_args& args, const ConvolvedTile& tile, TileRows<T>& before) {
  constexpr int kBefore = kTaps - 1;
  if (!args.states) {
    std::memset(&before, 0, sizeof before);
    return;
  }
  const int64_t length = args.state_length;
  const T* from = states_of<T>(args, tile) + length - kBefore;
  if (length == kTaps) {
    transpose<kBefore, kTaps>(from, length, tile.count, before);
  } else if (length == kBefore) {
    transpose<kBefore, kBefore>(from, length, tile.count, before);
  } else {
    transpose<kBefore, 0>(from, length, tile.count, before);
  }
}

// Sums of up to a vector of channels, whose inputs and taps begin at these places.
template <int kTaps, class T>
inline void convolve_channels(const T* const (&inputs)[kTaps], const TileRows<T>& taps, const T* bias, int64_t c, int64_t count,
                              T* to) {
  Vec sum = bias ? load_up_to(bias + c, count) : broadcast(0.0f);
  unroll<kTaps>([&](auto k) __attribute__((always_inline)) {
    sum = fma(load_up_to(inputs[k] + c, count), load(taps.at[k] + c), sum);
  });
  store_up_to(to + c, sum, count);
}

template <class T>
inline void activate_channels(T* sums, int64_t count) {
  for (int64_t c = 0; c < count; c += Vec::width) {
    store_up_to(sums + c, swish(load_up_to(sums + c, count - c), 1.0f), count - c);
  }
}

template <int kTaps, class T>
void convolve_tile(const winnow_convolution_args& args, const ConvolvedTile& tile) {
  TileRows<T> taps, before;
  transpose<kTaps, kTaps>(static_cast<const T*>(args.weight) + tile.first * kTaps, kTaps, tile.count, taps);
  if (tile.token < kTaps - 1) read_states<kTaps>(args, tile, before);
  const T* bias = args.bias ? static_cast<const T*>(args.bias) + tile.first : nullptr;
  for (int64_t token = tile.token; token < tile.end; ++token) {
    const T* inputs[kTaps];
    for (int64_t k = 0; k < kTaps; ++k) {
      const int64_t of = token - (kTaps - 1) + k;
      inputs[k] = of < 0 ? before.at[kTaps - 1 + of] : inputs_at<T>(args, tile, of);
    }
    T* to = static_cast<T*>(args.outputs) + (tile.row * args.tokens + token) * args.channels + tile.first;
    int64_t c = 0;
    for (; c + Vec::width <= tile.count; c += Vec::width) convolve_channels<kTaps>(inputs, taps, bias, c, Vec::width, to);
    if (c < tile.count) convolve_channels<kTaps>(inputs, taps, bias, c, tile.count - c, to);
    if (args.silu) activate_channels(to, tile.count);
  }
}

// The latest inputs take the place of the first ones.
template <class T>
void move_tile(const winnow_convolution_args& args, const ConvolvedTile& tile) {
  T* states = states_of<T>(args, tile);
  const int64_t length = args.state_length, fresh = least(length, args.tokens), kept = length - fresh;
  // All channels at once: numbers that come from the next channel are those that are written below.
  if (kept) std::memmove(states, states + fresh, static_cast<size_t>(tile.count * length - fresh) * sizeof(T));
  for (int64_t k = 0; k < fresh; ++k) {
    const T* from = inputs_at<T>(args, tile, args.tokens - fresh + k);
    T* to = states + kept + k;
    for (int64_t c = 0; c < tile.count; ++c) to[c * length] = from[c];
  }
}

template <int kTaps, class T>
void convolve_tiles(const winnow_convolution_args& args, int64_t first, int64_t last) {
  for (int64_t number = first; number < last; ++number) {
    const ConvolvedTile tile = tile_at(args, number, kConvolvedTokens);
    convolve_tile<kTaps, T>(args, tile);
    if (args.states && moves_at_once(args)) move_tile<T>(args, tile);
  }
}

template <class T>
void convolve(const winnow_convolution_args& args, int64_t first, int64_t last) {
  unroll<WINNOW_TAPS - 1>([&](auto k) {
    constexpr int kTaps = k + 2;
    if (args.taps == kTaps) convolve_tiles<kTaps, T>(args, first, last);
  });
}

template <class T>
void move_on(const winnow_convolution_args& args, int64_t first, int64_t last) {
  for (int64_t number = first; number < last; ++number) move_tile<T>(args, tile_at(args, number, args.tokens));
}

template <class T>
constexpr ConvolutionKernel kConvolution{convolve<T>, move_on<T>};

}  // namespace
}  // namespace winnow
