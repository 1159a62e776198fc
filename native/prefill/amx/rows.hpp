// Keys and values of a prompt in bf16, laid as tiles once, which all of its queries then meet.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "matrix/amx/operands.hpp"
#include "matrix/amx/sizes.hpp"
#include "prefill/contract.hpp"
#include "simd/element.hpp"
#include "sizes.hpp"
#include "winnow_native.h"

namespace winnow {
namespace {

// Tiles of a KV head, in words of two bf16. Those of keys have rows of 16 tokens and pairs of channels, those of values
// rows of 16 channels and pairs of tokens; tiles of the same tokens lie side by side.
struct PromptTiles {
  int64_t tokens, key_dim, value_dim;  // padded with zeros to whole blocks and tiles

  explicit PromptTiles(const winnow_prefill_args& args)
      : tokens(round_up(args.tokens, kTileTokens)),
        key_dim(round_up(args.key_dim, kTileChannels)),
        value_dim(round_up(args.value_dim, kTileChannels)) {}

  int64_t key_words() const { return tokens * key_dim / 2; }
  int64_t words() const { return key_words() + tokens * value_dim / 2; }
  // Where those of a token begin whose tile begins with it.
  int64_t keys_at(int64_t token) const { return token * key_dim / 2; }
  int64_t values_at(int64_t token) const { return key_words() + token * value_dim / 2; }
};

// The channels of a row from d on that a tile has, zero behind the last.
inline __m512i load_channels(const Bf16* row, int64_t d, int64_t dim) {
  const int64_t count = least(kTileChannels, dim - d);
  const __mmask32 there = count < kTileChannels ? (1u << count) - 1 : ~0u;
  return _mm512_maskz_loadu_epi16(there, row + d);
}

// Rows of a block of tokens of a head.
struct BlockRows {
  const Bf16* first;
  int64_t stride, count, dim;

  // Zero behind the last.
  __m512i load(int64_t t, int64_t d) const {
    return t < count ? load_channels(first + t * stride, d, dim) : _mm512_setzero_si512();
  }
};

// Keys as they lie.
inline void lay_keys(const BlockRows& keys, int64_t padded_dim, uint32_t* tiles) {
  for (int64_t t = 0; t < kTileTokens; ++t) {
    uint32_t* to = tiles + t / 16 * 16 * padded_dim / 2 + t % 16 * kTilePairs;
    for (int64_t d = 0; d < padded_dim; d += kTileChannels, to += kTileWords) {
      _mm512_store_si512(to, keys.load(t, d));
    }
  }
}

// Values turned.
inline void lay_values(const BlockRows& values, int64_t padded_dim, uint32_t* tiles) {
  const auto at = [&](int64_t t, int64_t d) { return values.load(t, d); };
  for (int64_t d = 0; d < padded_dim; d += kTileChannels) turn_values<false>(at, d, tiles);
}

// Keys and values of a block of tokens of one KV head -> that head's tiles.
inline void lay_tiles(const winnow_prefill_args& args, int64_t head, int64_t block, uint32_t* tiles) {
  const PromptTiles sizes(args);
  const int64_t token = block * kTileTokens, count = least(kTileTokens, args.tokens - token);
  const auto rows = [&](const void* data, int64_t head_stride, int64_t stride, int64_t dim) {
    return BlockRows{static_cast<const Bf16*>(data) + head * head_stride + token * stride, stride, count, dim};
  };
  lay_keys(rows(args.keys, args.key_head_stride, args.key_token_stride, args.key_dim), sizes.key_dim,
           tiles + sizes.keys_at(token));
  lay_values(rows(args.values, args.value_head_stride, args.value_token_stride, args.value_dim), sizes.value_dim,
             tiles + sizes.values_at(token));
}

}  // namespace
}  // namespace winnow
