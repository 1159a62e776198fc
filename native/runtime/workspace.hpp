// Memory that a calling thread keeps between calls: it grows and is never shrunk, so that a warm decode step
// allocates nothing.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace winnow {

class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { std::free(data_); }

  // At least `bytes` bytes, aligned to a cache line, with undefined contents. Throws std::bad_alloc.
  char* reserve(int64_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      size_ = 0;
      const size_t rounded = (static_cast<size_t>(bytes) + bytes / 4 + 4095) / 4096 * 4096;
      data_ = static_cast<char*>(std::aligned_alloc(4096, rounded));
      if (!data_) throw std::bad_alloc();
      size_ = static_cast<int64_t>(rounded);
    }
    return data_;
  }

 private:
  char* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace winnow
