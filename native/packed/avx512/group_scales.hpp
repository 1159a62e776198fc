// Scales of channel groups, which lie slot after slot, as rows of one group after another.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "attend/contract.hpp"
#include "packed/format.hpp"
#include "simd/element.hpp"
#include "simd/vec.hpp"
#include "sizes.hpp"

namespace winnow {
namespace {

// Scales and zeros of the channel groups of consecutive slots.
template <class T>
struct Groups {
  const T *scales, *zeros;  // of the first slot; no zeros where they are null
  int64_t count, size;      // groups of a slot, channels of a group
};

// Two neighboring numbers of 16 bits of each of the first `tokens` rows of `groups` numbers; the others are zero.
template <class T>
inline __m512i neighbors(const T* from, int64_t groups, int64_t group, int64_t tokens) {
  const auto some = [&](const T* p, int64_t n) { return _mm512_maskz_loadu_epi32(first_lanes(n < 0 ? 0 : n), p); };
  if (groups == 2) return some(from, tokens);
  if (groups == 4) {
    const __m512i a = some(from, tokens < 8 ? 2 * tokens : 16), b = some(from + 32, 2 * tokens - 16);
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_epi32(a, _mm512_add_epi32(even, _mm512_set1_epi32(static_cast<int>(group / 2))), b);
  }
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i bytes = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(static_cast<int>(groups * 2)));
  return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), first_lanes(tokens), bytes, from + group, 1);
}

inline Vec lower(Fp16, __m512i pairs) { return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs))}; }
inline Vec upper(Fp16, __m512i pairs) { return lower(Fp16{}, _mm512_srli_epi32(pairs, 16)); }

// The groups of the slots of a chunk; `dim` are the numbers of a slot.
template <class T>
inline Groups<T> groups_of(const winnow_rows& rows, const Chunk& chunk, int64_t dim) {
  const int64_t size = rows.scaling == WINNOW_GROUPED ? kScaleGroup : rows.scale_group, count = divide_up(dim, size);
  const auto at = [&](const void* all) { return all ? static_cast<const T*>(all) + chunk.slot * count : nullptr; };
  return {at(rows.scales), at(rows.zeros), count, size};
}

// The same from `tokens` slots later on.
template <class T>
inline Groups<T> later(const Groups<T>& groups, int64_t tokens) {
  const int64_t before = tokens * groups.count;
  return {groups.scales + before, groups.zeros ? groups.zeros + before : nullptr, groups.count, groups.size};
}

// to[g·stride + t] = from[t·groups + first + g] for `count` groups, `first` even, and all tokens; zero up to the next
// whole vector.
template <class T>
inline void spread_groups(const T* from, int64_t groups, int64_t first, int64_t count, int64_t tokens, float* to,
                          int64_t stride) {
  for (int64_t t = 0; t < tokens; t += Vec::width, from += Vec::width * groups, to += Vec::width) {
    const int64_t here = tokens - t < Vec::width ? tokens - t : Vec::width;
    if (groups == 1) {
      store(to, load_up_to(from, here));
      continue;
    }
    for (int64_t g = 0; g < count; g += 2) {
      const int64_t group = first + g;
      // The last of an odd number has its neighbor before it.
      if (group + 1 == groups) {
        store(to + g * stride, upper(T{}, neighbors(from, groups, group - 1, here)));
        continue;
      }
      const __m512i pairs = neighbors(from, groups, group, here);
      store(to + g * stride, lower(T{}, pairs));
      if (g + 1 < count) store(to + (g + 1) * stride, upper(T{}, pairs));
    }
  }
}

}  // namespace
}  // namespace winnow
