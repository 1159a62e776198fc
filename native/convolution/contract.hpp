// The promise of a convolution's functions, whatever the instruction set.
#pragma once

#include <cstdint>

#include "sizes.hpp"
#include "winnow_native.h"

namespace winnow {

// Do the tiles first to last - 1: of convolved_tiles, or, where states move on afterwards, of channel_tiles.
using ConvolutionFunction = void (*)(const winnow_convolution_args&, int64_t first, int64_t last);

struct ConvolutionKernel {
  ConvolutionFunction convolve, move_on;
};

namespace {

// Channels and tokens of a tile: a few rows of it stay in the first-level cache, and its taps are worth transposing.
constexpr int64_t kConvolvedChannels = 256;
constexpr int64_t kConvolvedTokens = 64;

// Tiles of the states of all rows.
constexpr int64_t channel_tiles(const winnow_convolution_args& args) {
  return args.rows * divide_up(args.channels, kConvolvedChannels);
}

constexpr int64_t convolved_tiles(const winnow_convolution_args& args) {
  return channel_tiles(args) * divide_up(args.tokens, kConvolvedTokens);
}

// True where a tile has all tokens, so that its states move on as soon as it is done; else others may still read them.
constexpr bool moves_at_once(const winnow_convolution_args& args) { return args.tokens <= kConvolvedTokens; }

}  // namespace
}  // namespace winnow
