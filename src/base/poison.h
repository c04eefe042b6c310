// Tells AddressSanitizer which memory the program must not access. By itself, the sanitizer checks the blocks
// of malloc, but neither the blocks of an arena nor the end of a mapped file. Both functions do nothing in
// builds without the sanitizer.
//
// Unpoison memory before returning it to the system. Otherwise the sanitizer reports accesses by the next
// owner of the memory.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)  // g++
#define PRIMUS_ADDRESS_SANITIZER 1
#elif defined(__has_feature)  // clang++
#if __has_feature(address_sanitizer)
#define PRIMUS_ADDRESS_SANITIZER 1
#endif
#endif

#ifdef PRIMUS_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace primus {

#ifdef PRIMUS_ADDRESS_SANITIZER
inline constexpr bool kPoisons = true;
inline void poison(const void* address, std::size_t bytes) { __asan_poison_memory_region(address, bytes); }
inline void unpoison(const void* address, std::size_t bytes) {
  __asan_unpoison_memory_region(address, bytes);
}
#else
inline constexpr bool kPoisons = false;
inline void poison(const void*, std::size_t) {}
inline void unpoison(const void*, std::size_t) {}
#endif

}  // namespace primus
