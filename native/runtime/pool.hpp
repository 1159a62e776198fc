// A small pool of worker threads.
//
// Why not OpenMP: its threads spin after every region by default and steal the cores from whoever runs next
// (67 µs became 7.9 ms with busy cores), and its settings belong to the whole process.
#pragma once

#include <atomic>
#include <cstdint>

#include "sizes.hpp"

namespace winnow {

// Runs task(context, slot) on the caller (slot 0) and on up to threads - 1 workers (slots 1..threads - 1) and
// returns when all that started have returned. Workers may start late or not at all, so tasks must share their
// work through a counter. When another thread is using the pool, only the caller runs.
void run_parallel(int threads, void (*task)(void* context, int slot), void* context);

// Runs body(slot, first, last) in that way for blocks of [0, count) until all are taken.
template <class Body>
void run_blocks(int threads, int64_t count, int64_t block, const Body& body) {
  struct Job {
    int64_t count, block;
    const Body& body;
    std::atomic<int64_t> next{0};
  } job{count, block, body};
  const auto work = [](void* context, int slot) {
    Job& job = *static_cast<Job*>(context);
    for (int64_t first; (first = job.next.fetch_add(job.block, std::memory_order_relaxed)) < job.count;) {
      job.body(slot, first, least(first + job.block, job.count));
    }
  };
  run_parallel(threads, work, &job);
}

}  // namespace winnow
