// A small pool of worker threads.
//
// Why not OpenMP: its threads spin after every region by default and steal the cores from whoever runs next
// (67 µs became 7.9 ms with busy cores), and its settings belong to the whole process.
#pragma once

namespace winnow {

// Runs task(context, slot) on the caller (slot 0) and on up to threads - 1 workers (slots 1..threads - 1) and
// returns when all that started have returned. Workers may start late or not at all, so tasks must share their
// work through a counter. When another thread is using the pool, only the caller runs.
void run_parallel(int threads, void (*task)(void* context, int slot), void* context);

}  // namespace winnow
