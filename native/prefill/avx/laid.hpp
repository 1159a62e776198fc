// Keys and values of a prompt, laid once as panels that all of its queries then meet, for AVX2 and AVX-512.
//
// Keys become fp32, channel by channel: of small keys beside large ones whole numbers would keep too few bits for logits. What
// weights of at most one meet may be rounded: values in bf16 become whole numbers, in pairs of tokens.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "prefill/contract.hpp"
#include "rounded/avx/panel.hpp"
#include "rounded/avx/rounding.hpp"
#include "rounded/sizes.hpp"
#include "simd/element.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Tokens that queries meet at a time: those of a block of whole numbers.
constexpr int64_t kTogetherTokens = kRoundedTogether;
constexpr int64_t kTokenPanels = kTogetherTokens / kPanelOutputs;

// True for values that are laid as whole numbers; others become fp32.
template <class T>
constexpr bool kRoundsValues = std::is_same_v<T, Bf16>;

// Blocks of tokens of a KV head, each the panels of its keys and then of its values.
template <class T>
struct LaidRows {
  int64_t key_dim, value_panels;

  explicit LaidRows(const winnow_prefill_args& args)
      : key_dim(args.key_dim), value_panels(divide_up(args.value_dim, kPanelOutputs)) {}

  int64_t key_words() const { return kTogetherTokens * key_dim; }
  // Of a panel of values: numbers, and scales behind those of all panels.
  static constexpr int64_t kNumberWords = kPanelBlock / (kRoundsValues<T> ? 2 : 1);
  static constexpr int64_t kScaleWords = kRoundsValues<T> ? kPanelOutputs : 0;
  int64_t block_words() const { return round_up(key_words() + value_panels * (kNumberWords + kScaleWords), 16); }

  int64_t key_panel(int64_t panel) const { return panel * kPanelOutputs * key_dim; }
  int64_t value_panel(int64_t panel) const { return key_words() + panel * kNumberWords; }
  int64_t value_scales(int64_t panel) const { return key_words() + value_panels * kNumberWords + panel * kPanelOutputs; }
};

// Keys of a block, zero for tokens that there are not -> [panels, D, kPanelOutputs].
template <class T>
inline void lay_keys(const T* from, int64_t stride, int64_t count, int64_t dim, float* to) {
  for (int64_t token = 0; token < kTogetherTokens; token += Vec::width) {
    float* panel = to + token / kPanelOutputs * kPanelOutputs * dim + token % kPanelOutputs;
    for (int64_t d = 0; d < dim; d += Vec::width) {
      const int64_t channels = least(Vec::width, dim - d);
      Vec rows[Vec::width];
      for (int64_t t = 0; t < Vec::width; ++t) {
        rows[t] = token + t < count ? load_up_to(from + (token + t) * stride + d, channels) : broadcast(0.0f);
      }
      transpose(rows);
      for (int64_t i = 0; i < channels; ++i) store(panel + (d + i) * kPanelOutputs, rows[i]);
    }
  }
}

// A panel of values, zero for tokens and channels that there are not: [kTogetherTokens, kPanelOutputs].
template <class T>
inline void read_values(const T* from, int64_t stride, int64_t count, int64_t channels,
                        float (&to)[kTogetherTokens][kPanelOutputs]) {
  for (int64_t t = 0; t < kTogetherTokens; ++t) {
    for (int64_t d = 0; d < kPanelOutputs; d += Vec::width) {
      const bool there = t < count && d < channels;
      store(to[t] + d, there ? load_up_to(from + t * stride + d, channels - d) : broadcast(0.0f));
    }
  }
}

// A block of tokens of one KV head -> its panels.
template <class T>
inline void lay_block(const winnow_prefill_args& args, int64_t head, int64_t block, uint32_t* words) {
  const LaidRows<T> sizes(args);
  const int64_t token = block * kTogetherTokens, count = least(kTogetherTokens, args.tokens - token);
  words += block * sizes.block_words();
  float* floats = reinterpret_cast<float*>(words);
  lay_keys(static_cast<const T*>(args.keys) + head * args.key_head_stride + token * args.key_token_stride,
           args.key_token_stride, count, args.key_dim, floats);
  const T* values =
      static_cast<const T*>(args.values) + head * args.value_head_stride + token * args.value_token_stride;
  for (int64_t panel = 0; panel < sizes.value_panels; ++panel) {
    const int64_t d = panel * kPanelOutputs;
    alignas(64) float numbers[kTogetherTokens][kPanelOutputs];
    read_values(values + d, args.value_token_stride, count, args.value_dim - d, numbers);
    uint32_t* to = words + sizes.value_panel(panel);
    if constexpr (kRoundsValues<T>) {
      round_columns(numbers, reinterpret_cast<int16_t*>(to), floats + sizes.value_scales(panel));
    } else {
      std::memcpy(to, numbers, sizeof numbers);
    }
  }
}

}  // namespace
}  // namespace winnow
