// Work on several threads: on those of the host's OpenMP where it lends them, else on a small pool of workers.
//
// OpenMP's threads spin after every region by default. In a process that computes with them, as torch's on a CPU, they
// are awake when attention is called, and workers of our own would wait for the cores on which they spin: a second
// thread then gained nothing. Where nobody else uses OpenMP it would be the other way round (67 µs became 7.9 ms with
// busy cores), so that this library brings none along.
#pragma once

#include <atomic>
#include <cstdint>

#include "sizes.hpp"

namespace winnow {

// GOMP_parallel(task, data, threads, flags) runs task(data) on every thread of a team and waits for all of them;
// omp_get_thread_num() is a thread's number in its team, 0 for the caller. LLVM's and Intel's OpenMP have both, too.
using TeamFunction = void (*)(void (*task)(void*), void* data, unsigned threads, unsigned flags);
using NumberFunction = int (*)();

// From here on work is done by teams of these. The first call counts; in a child of fork() none does.
void lend_threads(TeamFunction team, NumberFunction number);
bool threads_are_lent();

// Runs task(context, slot) on the caller (slot 0) and on up to threads - 1 others (slots 1..threads - 1) and
// returns when all that started have returned. The others may start late or not at all, so tasks must share their
// work through a counter. When another thread is using the pool, only the caller runs.
void run_parallel(int threads, void (*task)(void* context, int slot), void* context);

// Runs body(slot, first, last) in that way for ranges of [0, count) until all are taken; that which begins with `first` ends
// before end_of(first).
template <class End, class Body>
void run_ranges(int threads, int64_t count, const End& end_of, const Body& body) {
  struct Job {
    int64_t count;
    const End& end_of;
    const Body& body;
    std::atomic<int64_t> next{0};
  } job{count, end_of, body};
  const auto work = [](void* context, int slot) {
    Job& job = *static_cast<Job*>(context);
    for (int64_t first = job.next.load(std::memory_order_relaxed); first < job.count;) {
      const int64_t last = least(job.end_of(first), job.count);
      if (!job.next.compare_exchange_weak(first, last, std::memory_order_relaxed)) continue;
      job.body(slot, first, last);
      first = job.next.load(std::memory_order_relaxed);
    }
  };
  run_parallel(threads, work, &job);
}

// The same for blocks of one size, on as many threads as there are blocks at most.
template <class Body>
void run_blocks(int threads, int64_t count, int64_t block, const Body& body) {
  const int64_t most = least(threads, divide_up(count, block));
  run_ranges(static_cast<int>(most), count, [&](int64_t first) { return first + block; }, body);
}

// The same, with several blocks after another for a thread where it should read far before it goes on elsewhere: what it
// asks for ahead is its own then. They are many at first and one in the end, so that threads end together.
template <class Body>
void run_pieces(int threads, int64_t count, int64_t block, const Body& body) {
  const auto end_of = [&](int64_t first) { return first + round_up(divide_up(count - first, 2 * threads), block); };
  run_ranges(threads, count, end_of, [&](int slot, int64_t first, int64_t last) {
    for (; first < last; first += block) body(slot, first, least(first + block, last));
  });
}

}  // namespace winnow
