// Scales of slots, by which logits or weights are multiplied.
#pragma once

#include <cstdint>

#include "attend/contract.hpp"
#include "attend/weights.hpp"
#include "simd/prefetch.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Scales of slots are few bytes that nothing else would fetch in time.
template <class T>
inline void prefetch_scales(const winnow_rows& rows, const Chunk& chunk) {
  if (rows.scaling != WINNOW_PER_SLOT) return;
  const T* scales = static_cast<const T*>(rows.scales) + chunk.slot;
  prefetch_for_later(reinterpret_cast<const char*>(scales), chunk.tokens * static_cast<int64_t>(sizeof(T)));
}

// Those of a chunk's slots that are left to be multiplied after all else; null where there are none.
template <class T>
inline const T* slot_scales(const winnow_rows& rows, const Chunk& chunk) {
  return rows.scaling == WINNOW_PER_SLOT && !rows.masks ? static_cast<const T*>(rows.scales) + chunk.slot : nullptr;
}

// numbers[q][t] *= scale of slot t, if it has one.
template <int kQueries, class T>
inline void scale_by_slot(const winnow_rows& rows, const Chunk& chunk, float* numbers) {
  const T* scales = slot_scales<T>(rows, chunk);
  if (!scales) return;
  scale_tokens<kQueries>(numbers, 0, chunk.tokens,
                         [&](int64_t t, int64_t rest) { return load_up_to(scales + t, rest); });
}

}  // namespace
}  // namespace winnow
