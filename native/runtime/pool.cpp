#include "runtime/pool.hpp"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace winnow {
namespace {

// A worker looks for the next job this long before it sleeps: attention calls of consecutive layers come in
// quick succession, but a spinning worker takes a core from the matrix products in between.
constexpr auto kWorkerSpin = std::chrono::microseconds(20);
constexpr auto kCallerSpin = std::chrono::microseconds(100);

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class Condition>
bool spin_until(std::chrono::microseconds patience, const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  do {
    for (int i = 0; i < 32; ++i) {
      if (condition()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

class Pool {
 public:
  void run(int threads, void (*task)(void*, int), void* context) {
    std::unique_lock<std::mutex> owner(owner_, std::try_to_lock);
    if (threads < 2 || !owner || !open_job(threads - 1, task, context)) {
      task(context, 0);
      return;
    }
    task(context, 0);
    close_job();
  }

  // Ends the workers; calls that come later run on their caller alone. The pool itself is never freed: another
  // thread may be inside run() while the process exits.
  void stop() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopping_ = true;
      ++epoch_;
    }
    wake_workers_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

 private:
  // Publishes the job for at most `helpers` workers.
  bool open_job(int helpers, void (*task)(void*, int), void* context) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return false;
      add_workers(helpers);
      task_ = task;
      context_ = context;
      next_slot_ = 1;
      last_slot_ = helpers;
      ++epoch_;
      if (!sleeping_) return true;
    }
    wake_workers_.notify_all();
    return true;
  }

  void add_workers(int wanted) {
    try {
      while (static_cast<int>(workers_.size()) < wanted) workers_.emplace_back(&Pool::work, this);
    } catch (const std::system_error&) {
      // Fewer threads than asked for: the caller does their share.
    }
  }

  // No worker may join from here on; waits for those that did.
  void close_job() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      last_slot_ = 0;
    }
    if (spin_until(kCallerSpin, [&] { return running_.load(std::memory_order_acquire) == 0; })) return;
    std::unique_lock<std::mutex> lock(mutex_);
    wake_caller_.wait(lock, [&] { return running_.load(std::memory_order_acquire) == 0; });
  }

  void work() {
    unsigned seen = 0;
    for (;;) {
      wait_for_job(seen);
      std::unique_lock<std::mutex> lock(mutex_);
      seen = epoch_;
      if (stopping_) return;
      if (next_slot_ > last_slot_) continue;
      const int slot = next_slot_++;
      const auto task = task_;
      void* const context = context_;
      running_.fetch_add(1, std::memory_order_relaxed);
      lock.unlock();
      task(context, slot);
      lock.lock();
      if (running_.fetch_sub(1, std::memory_order_release) == 1) wake_caller_.notify_one();
    }
  }

  void wait_for_job(unsigned seen) {
    if (spin_until(kWorkerSpin, [&] { return epoch_.load(std::memory_order_acquire) != seen; })) return;
    std::unique_lock<std::mutex> lock(mutex_);
    ++sleeping_;
    wake_workers_.wait(lock, [&] { return epoch_ != seen; });
    --sleeping_;
  }

  std::mutex owner_;  // held by the caller whose job the pool runs
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_workers_, wake_caller_;
  std::vector<std::thread> workers_;
  std::atomic<unsigned> epoch_{0};  // jobs so far, read without the lock by spinning workers
  std::atomic<int> running_{0};     // workers inside the job
  void (*task_)(void*, int) = nullptr;
  void* context_ = nullptr;
  int next_slot_ = 1, last_slot_ = 0;  // slots still to be taken
  int sleeping_ = 0;
  bool stopping_ = false;
};

std::atomic<Pool*> current{nullptr};

std::atomic<bool> forked{false};

// Of the host's OpenMP. The number is written first and read last.
std::atomic<NumberFunction> thread_number{nullptr};
std::atomic<TeamFunction> team_of_host{nullptr};

struct TeamTask {
  void (*task)(void*, int);
  void* context;
};

void run_in_team(void* data) {
  const TeamTask& mine = *static_cast<TeamTask*>(data);
  mine.task(mine.context, thread_number.load(std::memory_order_relaxed)());
}

// After fork() the child has no workers, and the locks are in whatever state they were: start afresh. Nor has it the
// threads of OpenMP, for which a team would wait forever.
void forget_threads() {
  forked.store(true);
  current.store(nullptr);
  team_of_host.store(nullptr);
}

Pool& pool() {
  if (Pool* existing = current.load(std::memory_order_acquire)) return *existing;
  Pool* fresh = new Pool;
  Pool* expected = nullptr;
  if (current.compare_exchange_strong(expected, fresh)) return *fresh;
  delete fresh;
  return *expected;
}

// Ends the workers when the library is unloaded or the process exits.
struct Lifetime {
  Lifetime() { pthread_atfork(nullptr, nullptr, forget_threads); }
  ~Lifetime() {
    if (Pool* existing = current.load(std::memory_order_acquire)) existing->stop();
  }
} lifetime;

}  // namespace

void lend_threads(TeamFunction team, NumberFunction number) {
  if (forked.load() || team_of_host.load(std::memory_order_acquire)) return;
  thread_number.store(number, std::memory_order_relaxed);
  team_of_host.store(team, std::memory_order_release);
}

bool threads_are_lent() { return team_of_host.load(std::memory_order_relaxed); }

void run_parallel(int threads, void (*task)(void*, int), void* context) {
  if (threads < 2) {
    task(context, 0);
  } else if (const TeamFunction team = team_of_host.load(std::memory_order_acquire)) {
    TeamTask mine{task, context};
    team(run_in_team, &mine, static_cast<unsigned>(threads), 0);
  } else {
    pool().run(threads, task, context);
  }
}

}  // namespace winnow
