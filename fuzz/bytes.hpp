// Choices from a fuzzer's bytes, and arrays that end where they end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <vector>

// Bytes, read from the front; zeros when there are no more.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  // 0 .. end - 1; `end` up to 2^16.
  int64_t below(int64_t end) {
    const int64_t low = next();
    return (end > 256 ? low | next() << 8 : low) % end;
  }
  // first .. last
  int64_t among(int64_t first, int64_t last) { return first + below(last - first + 1); }
  bool coin() { return next() & 1; }
  uint8_t next() { return left_ ? (--left_, *data_++) : 0; }

 private:
  const uint8_t* data_;
  size_t left_;
};

// Arrays of exactly as many bytes as are asked for, each an allocation of its own, filled by a seed.
class Arrays {
 public:
  explicit Arrays(uint64_t seed) : state_(seed * 2 + 1) {}

  template <class T>
  T* zeros(int64_t count) {
    held_.emplace_back(new char[static_cast<size_t>(count) * sizeof(T)]());
    return reinterpret_cast<T*>(held_.back());
  }
  uint8_t* noise(int64_t bytes) {
    uint8_t* made = zeros<uint8_t>(bytes);
    for (int64_t i = 0; i < bytes; ++i) made[i] = static_cast<uint8_t>(random());
    return made;
  }
  // Numbers of a winnow_dtype: mostly between -2 and 2, or any bits at all.
  void* numbers(int32_t dtype, int64_t count, bool any) {
    const int64_t width = dtype == 0 ? 4 : 2;
    uint8_t* made = noise(count * width);
    // The highest byte has the sign and most of the exponent.
    for (int64_t i = 0; !any && i < count; ++i) {
      uint8_t& high = made[i * width + width - 1];
      high = static_cast<uint8_t>((high & 0x80) | 0x3c | (high & 3));
    }
    return made;
  }
  // 31 bits.
  uint32_t random() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }
  ~Arrays() {
    for (char* each : held_) delete[] each;
  }

 private:
  uint64_t state_;
  std::list<char*> held_;
};
