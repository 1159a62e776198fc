// Causal attention of a panel of queries over a prompt in tiles, with what every token was paid.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "attend/contract.hpp"
#include "matrix/amx/products.hpp"
#include "matrix/amx/sizes.hpp"
#include "matrix/amx/split.hpp"
#include "matrix/amx/tiles.hpp"
#include "matrix/amx/weights.hpp"
#include "prefill/amx/rows.hpp"
#include "prefill/amx/weights.hpp"
#include "prefill/contract.hpp"
#include "simd/avx512/transpose.hpp"
#include "simd/element.hpp"
#include "simd/math.hpp"
#include "simd/unroll.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Tokens that meet a panel at a time: their products stay in the first-level cache.
constexpr int64_t kPanelTokens = 64;
constexpr int64_t kLaneVectors = kPanelLanes / Vec::width;

// Pieces of a thread's scratch, in floats.
struct PanelSizes {
  int64_t queries, sums, products, numerators, maxima;

  PanelSizes(const winnow_prefill_args& args, const PromptTiles& tiles)
      : queries(kPanelLanes * tiles.key_dim / 2),
        sums(kPanelLanes * tiles.value_dim),
        products(kPanelTokens * kPanelLanes),
        numerators(held_blocks(args) * kPanelTokens / 2 * kPanelLanes),
        maxima(held_blocks(args) * kPanelLanes) {}

  // Blocks of tokens whose numerators are kept.
  static int64_t held_blocks(const winnow_prefill_args& args) {
    return args.paid ? divide_up(args.tokens, kPanelTokens) : 1;
  }
  int64_t all() const { return queries + sums + products + numerators + maxima; }
};

// Where the queries of a panel are, and what they see. Lanes without a query repeat the last one; nobody reads them.
struct PanelLanes {
  int64_t count;
  const Bf16* query[kPanelLanes];
  int64_t row[kPanelLanes];                 // of the output
  int64_t head[kPanelLanes];                // of all query heads
  alignas(64) float last_seen[kPanelLanes];  // token

  PanelLanes(const winnow_prefill_args& args, int64_t kv_head, int64_t first)
      : count(least(kPanelLanes, prefill_queries(args) - first)) {
    int64_t token = first / args.group_size, member = first % args.group_size;
    for (int64_t lane = 0; lane < kPanelLanes; ++lane) {
      head[lane] = kv_head * args.group_size + member;
      query[lane] = static_cast<const Bf16*>(args.query) + head[lane] * args.query_head_stride +
                    token * args.query_token_stride;
      row[lane] = token * args.heads * args.group_size + head[lane];
      last_seen[lane] = static_cast<float>(args.tokens - args.queries + token);
      if (lane + 1 < count && ++member == args.group_size) {
        member = 0;
        ++token;
      }
    }
  }
  int64_t first_sees() const { return static_cast<int64_t>(last_seen[0]) + 1; }
  int64_t visible() const { return static_cast<int64_t>(last_seen[kPanelLanes - 1]) + 1; }
};

class QueryPanel {
 public:
  // The queries from the `first`-th on, in the order of tokens and then of heads.
  QueryPanel(const winnow_prefill_args& args, const PrefillPart& part, int64_t first)
      : args_(args),
        tiles_(args),
        lanes_(args, part.head, first),
        visible_(lanes_.visible()),
        rows_(part.rows),
        log2_scaling_(args.scaling * kLog2E) {
    const PanelSizes sizes(args, tiles_);
    queries_ = reinterpret_cast<uint32_t*>(part.scratch);
    sums_ = part.scratch + sizes.queries;
    products_ = sums_ + sizes.sums;
    numerators_ = reinterpret_cast<uint32_t*>(products_ + sizes.products);
    maxima_ = products_ + sizes.products + sizes.numerators;
    take_queries();
    std::memset(sums_, 0, static_cast<size_t>(sizes.sums) * sizeof(float));
    each_vector([&](int64_t lane) {
      store(max_ + lane, broadcast(kNoMax));
      store(sum_ + lane, broadcast(0.0f));
    });
  }

  void run(float* paid) {
    for (int64_t token = 0; token < visible_; token += kPanelTokens) over_tokens(token);
    if (args_.sinks) add_sinks();
    if (paid) pay(paid);
    write();
  }

 private:
  template <class Body>
  static void each_vector(const Body& body) {
    unroll<kLaneVectors>([&](auto v) { body(static_cast<int64_t>(v * Vec::width)); });
  }

  int64_t channel_blocks() const { return tiles_.key_dim / kTileChannels; }
  // Those of a block that some query sees, in whole tiles.
  int64_t used(int64_t token) const { return least(kPanelTokens, round_up(visible_ - token, kTileTokens)); }
  uint32_t* numerators_of(int64_t token) const { return numerators_ + (args_.paid ? token / 2 * kPanelLanes : 0); }
  float* maxima_of(int64_t token) const { return maxima_ + (args_.paid ? token / kPanelTokens * kPanelLanes : 0); }

  // Tiles whose rows are pairs of channels, those of a vector of queries one after another.
  void take_queries() {
    uint32_t* to = queries_;
    for (int64_t lane = 0; lane < kPanelLanes; lane += Vec::width) {
      for (int64_t d = 0; d < tiles_.key_dim; d += kTileChannels, to += kTileWords) {
        __m512i rows[Vec::width];
        for (int64_t i = 0; i < Vec::width; ++i) rows[i] = load_channels(lanes_.query[lane + i], d, args_.key_dim);
        transpose(rows);
        for (int64_t i = 0; i < Vec::width; ++i) _mm512_store_si512(to + i * kTilePairs, rows[i]);
      }
    }
  }

  void over_tokens(int64_t token) {
    const int64_t count = used(token);
    score(token, count);
    if (args_.softcap > 0.0f) cap(count);
    if (token + count > lanes_.first_sees()) mask(token, count);
    alignas(64) float factors[kPanelLanes];
    if (take_numerators(token, count, factors)) scale_sums<kLaneVectors>(factors, tiles_.value_dim, sums_);
    weigh(token, count);
  }

  // Products with keys.
  void score(int64_t token, int64_t count) {
    const int64_t row_words = channel_blocks() * kTileWords;
    finish_stores();
    for (int64_t t = 0; t < count; t += kTileTokens) {
      const uint32_t *upper = rows_ + tiles_.keys_at(token + t), *lower = upper + row_words;
      zero_sums<4>();
      for (int64_t word = 0; word < row_words; word += kTileWords) {
        add_tiles<2>(upper + word, lower + word, 64, queries_ + word, queries_ + row_words + word, 64);
      }
      store_panel<2>(products_ + t * kPanelLanes, products_ + (t + 16) * kPanelLanes);
    }
  }

  // Products that are capped are logits.
  float factor() const { return args_.softcap > 0.0f ? 1.0f : log2_scaling_; }
  void cap(int64_t count) {
    const AllTokens scales{broadcast(log2_scaling_)};
    each_vector([&](int64_t lane) {
      cap_logits(args_.softcap, scales, broadcast(0.0f), {products_ + lane, kPanelLanes, count});
    });
  }

  void mask(int64_t token, int64_t count) {
    each_vector([&](int64_t lane) {
      const Vec last = load(lanes_.last_seen + lane);
      for (int64_t t = 0; t < count; ++t) {
        float* at = products_ + t * kPanelLanes + lane;
        store(at, if_less(last, broadcast(static_cast<float>(token + t)), broadcast(kNoMax), load(at)));
      }
    });
  }

  // Numerators of a block, relative to the maximum so far. Returns whether a factor of the sums before is not one.
  bool take_numerators(int64_t token, int64_t count, float* factors) {
    bool is_raised = false;
    each_vector([&](int64_t lane) {
      const Products products{products_ + lane, count, factor()};
      const Maximum raised = raise(load(max_ + lane), largest_logit(products));
      const Vec sum = write_numerators(products, raised.max, numerators_of(token) + lane);
      store(max_ + lane, raised.max);
      store(maxima_of(token) + lane, raised.max);
      store(sum_ + lane, fma(raised.factor, load(sum_ + lane), sum));
      store(factors + lane, raised.factor);
      is_raised |= raised.is_above;
    });
    return is_raised;
  }

  // Adds values times numerators to the sums.
  void weigh(int64_t token, int64_t count) {
    const int64_t block_words = tiles_.value_dim / 16 * kTileWords;
    constexpr int64_t kPairBytes = kPanelLanes * static_cast<int64_t>(sizeof(uint32_t));
    finish_stores();
    for (int64_t d = 0; d < tiles_.value_dim; d += 32) {
      const uint32_t *values = rows_ + tiles_.values_at(token) + d / 16 * kTileWords, *left = numerators_of(token);
      float *top = sums_ + d * kPanelLanes, *bottom = top + 16 * kPanelLanes;
      load_panel<2>(top, bottom);
      for (int64_t t = 0; t < count; t += kTileTokens) {
        add_tiles<2>(values, values + kTileWords, 64, left, left + Vec::width, kPairBytes);
        values += block_words;
        left += kTilePairs * kPanelLanes;
      }
      store_panel<2>(top, bottom);
    }
  }

  // From here on sum_ is the denominator, and max_ what it is relative to.
  void add_sinks() {
    alignas(64) float sinks[kPanelLanes], factors[kPanelLanes];
    for (int64_t lane = 0; lane < kPanelLanes; ++lane) sinks[lane] = kLog2E * args_.sinks[lanes_.head[lane]];
    each_vector([&](int64_t lane) {
      const Vec sink = load(sinks + lane), before = load(max_ + lane), shift = max(before, sink);
      const Vec factor = power_of_two(before - shift);
      store(factors + lane, factor);
      store(max_ + lane, shift);
      store(sum_ + lane, fma(factor, load(sum_ + lane), power_of_two(sink - shift)));
    });
    scale_sums<kLaneVectors>(factors, tiles_.value_dim, sums_);
  }

  // Adds to paid[token] what all lanes paid it, the mean over the heads.
  void pay(float* paid) const {
    for (int64_t token = 0; token < visible_; token += kPanelTokens) {
      alignas(64) float shares[kPanelLanes];
      for (int64_t lane = 0; lane < kPanelLanes; ++lane) {
        shares[lane] = lane < lanes_.count ? 1.0f / static_cast<float>(args_.group_size) : 0.0f;
      }
      each_vector([&](int64_t lane) {
        const Vec factor = power_of_two(load(maxima_of(token) + lane) - load(max_ + lane));
        store(shares + lane, load(shares + lane) * factor / load(sum_ + lane));
      });
      const int64_t count = least(kPanelTokens, visible_ - token);
      for (int64_t t = 0; t < count; t += Vec::width) {
        float* to = paid + token + t;
        const int64_t there = least(Vec::width, count - t);
        store_first(to, load_first(to, there) + shares_of_tokens(numerators_of(token + t), shares), there);
      }
    }
  }

  // Sums over the lanes of the numerators of 16 tokens times shares.
  static Vec shares_of_tokens(const uint32_t* pairs, const float* shares) {
    Vec tokens[Vec::width];
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    unroll<Vec::width / 2>([&](auto pair) {
      Vec even = broadcast(0.0f), odd = even;
      each_vector([&](int64_t lane) {
        const __m512i both = _mm512_loadu_si512(pairs + pair * kPanelLanes + lane);
        const Vec share = load(shares + lane);
        even = fma(Vec{_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))}, share, even);
        odd = fma(Vec{_mm512_castsi512_ps(_mm512_and_si512(both, upper))}, share, odd);
      });
      tokens[2 * pair] = even;
      tokens[2 * pair + 1] = odd;
    });
    return row_sums(tokens);
  }

  void write() const {
    for (int64_t lane = 0; lane < lanes_.count; lane += Vec::width) {
      for (int64_t d = 0; d < args_.value_dim; d += Vec::width) {
        __m512i rows[Vec::width];
        for (int64_t i = 0; i < Vec::width; ++i) rows[i] = _mm512_load_si512(sums_ + (d + i) * kPanelLanes + lane);
        transpose(rows);
        for (int64_t i = 0; i < least(Vec::width, lanes_.count - lane); ++i) {
          Bf16* to = static_cast<Bf16*>(args_.output) + lanes_.row[lane + i] * args_.value_dim + d;
          const Vec sums = {_mm512_castsi512_ps(rows[i])};
          store_first(to, sums * broadcast(1.0f / sum_[lane + i]), least(Vec::width, args_.value_dim - d));
        }
      }
    }
  }

  const winnow_prefill_args& args_;
  const PromptTiles tiles_;
  const PanelLanes lanes_;
  const int64_t visible_;  // tokens, to the last query
  const uint32_t* rows_;
  const float log2_scaling_;
  uint32_t* queries_;     // tiles
  float* sums_;           // [padded Dv, kPanelLanes] of values, relative to max_
  float* products_;       // [kPanelTokens, kPanelLanes]
  uint32_t* numerators_;  // [tokens / 2, kPanelLanes] pairs, relative to the maximum so far
  float* maxima_;         // [tokens / kPanelTokens, kPanelLanes], what that was, as an exponent of two
  alignas(64) float max_[kPanelLanes];
  alignas(64) float sum_[kPanelLanes];
};

inline void prefill_in_tiles(const winnow_prefill_args& args, const PrefillPart& part) {
  const Tiles tiles;
  const int64_t panels = divide_up(prefill_queries(args), kPanelLanes);
  for (int64_t i = part.stripe; i < panels; i += part.stripes) QueryPanel(args, part, i * kPanelLanes).run(part.paid);
}

inline int64_t panel_floats(const winnow_prefill_args& args) { return PanelSizes(args, PromptTiles(args)).all(); }
inline int64_t tile_words_of_head(const winnow_prefill_args& args) { return PromptTiles(args).words(); }

constexpr PrefillKernel kPrefillInTiles = {prefill_in_tiles, panel_floats, tile_words_of_head, lay_tiles, kTileTokens, false};

}  // namespace
}  // namespace winnow
