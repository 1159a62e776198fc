// Lanes of a block of queries: a few vectors, one query to a lane.
#pragma once

#include "simd/unroll.hpp"
#include "simd/vec.hpp"

namespace winnow {
namespace {

// Lanes of a block, vectors times lanes of one, of the widest instruction set.
constexpr int64_t kMostLanes = 48;

// As many accumulators as registers hold beside a vector of each operand.
constexpr int kBlockVectors = 3;
constexpr int kTileRows = Vec::width == 16 ? 8 : 4;
constexpr int64_t kLanes = kBlockVectors * Vec::width;
static_assert(kLanes <= kMostLanes, "scratch is too small");

struct Lanes {
  Vec v[kBlockVectors];
};

inline Lanes load_lanes(const float* p) {
  Lanes lanes;
  unroll<kBlockVectors>([&](auto i) { lanes.v[i] = load(p + i * Vec::width); });
  return lanes;
}
inline void store_lanes(float* p, const Lanes& lanes) {
  unroll<kBlockVectors>([&](auto i) { store(p + i * Vec::width, lanes.v[i]); });
}
inline Lanes all_lanes(float x) {
  Lanes lanes;
  unroll<kBlockVectors>([&](auto i) { lanes.v[i] = broadcast(x); });
  return lanes;
}
template <class Combine>
inline Lanes combine(const Lanes& a, const Lanes& b, const Combine& combine) {
  Lanes c;
  unroll<kBlockVectors>([&](auto i) { c.v[i] = combine(a.v[i], b.v[i]); });
  return c;
}

}  // namespace
}  // namespace winnow
