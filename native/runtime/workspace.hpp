// Memory that a calling thread keeps between calls: it grows and is never shrunk, so that a warm decode step
// allocates nothing.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

#include "runtime/red_zones.hpp"

namespace winnow {

class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() { release(); }

  // At least `bytes` bytes, aligned to a cache line, with undefined contents. Throws std::bad_alloc.
  char* reserve(int64_t bytes) {
    if (bytes > size_) {
      release();
      const size_t rounded = (static_cast<size_t>(bytes) + bytes / 4 + 4095) / 4096 * 4096;
      data_ = static_cast<char*>(std::aligned_alloc(4096, rounded));
      if (!data_) throw std::bad_alloc();
      size_ = static_cast<int64_t>(rounded);
    }
    allow(data_, bytes);
    forbid(data_ + bytes, size_ - bytes);
    return data_;
  }

 private:
  void release() {
    allow(data_, size_);
    std::free(data_);
    size_ = 0;
  }

  char* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace winnow
