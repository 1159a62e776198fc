// Gaps between pieces of one allocation, in which the address sanitizer sees every access. Other builds have none.
#pragma once

#include <cstdint>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WINNOW_RED_ZONES
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define WINNOW_RED_ZONES
#endif

#ifdef WINNOW_RED_ZONES
#include <sanitizer/asan_interface.h>
#endif

namespace winnow {

#ifdef WINNOW_RED_ZONES
constexpr int64_t kRedZone = 1024;
inline void forbid(const char* memory, int64_t bytes) { __asan_poison_memory_region(memory, bytes); }
inline void allow(const char* memory, int64_t bytes) { __asan_unpoison_memory_region(memory, bytes); }
#else
constexpr int64_t kRedZone = 0;
inline void forbid(const char*, int64_t) {}
inline void allow(const char*, int64_t) {}
#endif

}  // namespace winnow
