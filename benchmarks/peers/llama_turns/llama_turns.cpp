// One of llama.cpp's caches on a model, timed by turns: a prompt is read once, and steps are timed at any of its depths.
//
//     llama-turns MODEL.gguf TOKENS TYPE FLASH        TOKENS: room in the cache; TYPE: f16, q8_0 …; FLASH: 0 or 1
//
// Answers every line of standard input with one of JSON, after a first one with the bytes of the weights:
//
//     prompt THREADS DEPTH...          milliseconds of the first DEPTH tokens of a random prompt, for every DEPTH
//     tokens DEPTH THREADS STEPS       mean milliseconds of STEPS random tokens after the first DEPTH, which come back
//
// llama-bench times the same calls, but reads the prompt anew for every depth and every run.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "ggml-cpu.h"
#include "llama.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBatch = 2048;  // tokens of a prompt that are handed over at a time, as llama-bench does

double milliseconds(Clock::duration spent) { return std::chrono::duration<double, std::milli>(spent).count(); }

ggml_type type_named(const std::string& name) {
  for (int type = 0; type < GGML_TYPE_COUNT; ++type) {
    const char* known = ggml_type_name(static_cast<ggml_type>(type));
    if (known != nullptr && name == known) return static_cast<ggml_type>(type);
  }
  throw std::runtime_error("no type of a cache: " + name);
}

template <typename T>
std::shared_ptr<T> owned(T* made, void (*release)(T*), const std::string& what) {
  if (made == nullptr) throw std::runtime_error("failed to make " + what);
  return {made, release};
}

class Cache {
 public:
  Cache(const std::string& path, int room, ggml_type type, bool flash)
      : model_(owned(llama_model_load_from_file(path.c_str(), llama_model_default_params()), llama_model_free,
                     "a model of " + path)),
        context_(owned(llama_init_from_model(model_.get(), settings(room, type, flash)), llama_free, "a context")),
        memory_(llama_get_memory(context_.get())) {}

  uint64_t weight_bytes() const { return llama_model_size(model_.get()); }

  // Milliseconds from the start of the prompt to each of ascending depths, whose states are kept.
  std::vector<double> read(int threads, const std::vector<int>& depths) {
    use(threads);
    llama_memory_clear(memory_, true);
    std::vector<double> found;
    Clock::duration spent{};
    int done = 0;
    for (const int depth : depths) {
      const auto begin = Clock::now();
      for (; done < depth; done = std::min(depth, done + kBatch)) decode(std::min(kBatch, depth - done));
      spent += Clock::now() - begin;
      found.push_back(milliseconds(spent));
      std::vector<uint8_t> state(llama_state_seq_get_size(context_.get(), 0));
      if (llama_state_seq_get_data(context_.get(), state.data(), state.size(), 0) != state.size()) {
        throw std::runtime_error("failed to copy the state of the cache");
      }
      states_[depth] = std::move(state);
    }
    return found;
  }

  // Mean milliseconds of a token after one that is not timed.
  double step(int depth, int threads, int steps) {
    use(threads);
    llama_memory_clear(memory_, false);
    if (depth > 0) restore(states_.at(depth));
    decode(1);
    const auto begin = Clock::now();
    for (int i = 0; i < steps; ++i) decode(1);
    return milliseconds(Clock::now() - begin) / steps;
  }

 private:
  static llama_context_params settings(int room, ggml_type type, bool flash) {
    llama_context_params made = llama_context_default_params();
    made.n_ctx = room;
    made.n_batch = kBatch;
    made.type_k = made.type_v = type;
    made.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    return made;
  }

  // A pool of threads that stays, as in llama.cpp's own programs; without one every step makes its own.
  void use(int threads) {
    auto& pool = pools_[threads];
    if (pool == nullptr) {
      ggml_threadpool_params asked = ggml_threadpool_params_default(threads);
      pool = owned(ggml_threadpool_new(&asked), ggml_threadpool_free, "threads");
    }
    llama_attach_threadpool(context_.get(), pool.get(), nullptr);
    llama_set_n_threads(context_.get(), threads, threads);
  }

  void restore(const std::vector<uint8_t>& state) {
    if (llama_state_seq_set_data(context_.get(), state.data(), state.size(), 0) != state.size()) {
      throw std::runtime_error("failed to restore the state of the cache");
    }
  }

  void decode(int count) {
    const int words = llama_vocab_n_tokens(llama_model_get_vocab(model_.get()));
    std::vector<llama_token> tokens(count);
    for (auto& token : tokens) token = std::rand() % words;
    const int code = llama_decode(context_.get(), llama_batch_get_one(tokens.data(), count));
    if (code != 0) throw std::runtime_error("llama_decode returned " + std::to_string(code));
    llama_synchronize(context_.get());
  }

  std::shared_ptr<llama_model> model_;
  std::map<int, std::shared_ptr<ggml_threadpool>> pools_;
  std::shared_ptr<llama_context> context_;
  llama_memory_t memory_;
  std::map<int, std::vector<uint8_t>> states_;
};

void print(const char* name, const std::vector<double>& values) {
  std::printf("{\"%s\": [", name);
  for (size_t i = 0; i < values.size(); ++i) std::printf("%s%.6f", i > 0 ? ", " : "", values[i]);
  std::printf("]}\n");
  std::fflush(stdout);
}

void answer(Cache& cache, const std::string& line) {
  std::istringstream words(line);
  std::string what;
  words >> what;
  std::vector<int> numbers;
  for (int number; words >> number;) numbers.push_back(number);
  if (what == "prompt" && numbers.size() > 1) {
    print("ms", cache.read(numbers[0], {numbers.begin() + 1, numbers.end()}));
  } else if (what == "tokens" && numbers.size() == 3) {
    print("ms", {cache.step(numbers[0], numbers[1], numbers[2])});
  } else {
    throw std::runtime_error("not understood: " + line);
  }
}

void quiet(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) {
    std::fprintf(stderr, "usage: %s MODEL.gguf TOKENS TYPE FLASH\n", arguments[0]);
    return 2;
  }
  llama_log_set(quiet, nullptr);
  llama_backend_init();
  try {
    Cache cache(arguments[1], std::atoi(arguments[2]), type_named(arguments[3]), std::atoi(arguments[4]) != 0);
    std::printf("{\"weight_bytes\": %llu}\n", static_cast<unsigned long long>(cache.weight_bytes()));
    std::fflush(stdout);
    for (std::string line; std::getline(std::cin, line);) answer(cache, line);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "%s\n", problem.what());
    return 1;
  }
  return 0;
}
