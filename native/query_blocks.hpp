// Cutting the queries of a KV head into register blocks. Include after a vec_*.hpp.
#pragma once

#include <cstdint>

#include "unroll.hpp"

namespace winnow {
namespace {

// Calls body(first, Count<size>) for blocks that cover n queries. The last block may run past n, into the
// padding, where that is cheaper than another pass over the keys (3 as 4, 7 as 8).
template <class Body>
inline void for_query_blocks(int64_t n, const Body& body) {
  int64_t first = 0;
  while (first < n) {
    const int64_t rest = n - first;
    if (Vec::width >= 16 && rest >= 15) {
      body(first, Count<(Vec::width >= 16 ? 16 : 8)>{});
      first += 16;
    } else if (rest >= 7) {
      body(first, Count<8>{});
      first += 8;
    } else if (rest >= 3) {
      body(first, Count<4>{});
      first += 4;
    } else {
      rest == 2 ? body(first, Count<2>{}) : body(first, Count<1>{});
      first += rest;
    }
  }
}

}  // namespace
}  // namespace winnow
