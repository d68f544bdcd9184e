#include "support/portability.h"

#include <new>

// NOLINTBEGIN(bugprone-reserved-identifier,bugprone-std-namespace-modification)

// Hidden definitions, so that nothing looks for these in the system's libraries.

#if defined(__GLIBC__)
// Since glibc 2.32. 0 makes shared_ptr count atomically at all times.
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;
#endif

#if defined(__GLIBCXX__)
namespace std {

// Since GCC 11; older headers do not declare it.
[[noreturn]] __attribute__((visibility("hidden"))) void __throw_bad_array_new_length();
void __throw_bad_array_new_length() { throw bad_array_new_length(); }

}  // namespace std

// Since GCC 11 the headers inline copies and destruction of std::exception_ptr and call these two members, which were
// private to libstdc++ before. Its copy constructor and destructor, which every release exports, do the same.
extern "C" {

void CopyExceptionPointer(void* to, const void* from) __asm__("_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
void DestroyExceptionPointer(void* pointer) __asm__("_ZNSt15__exception_ptr13exception_ptrD1Ev");

__attribute__((visibility("hidden"))) void AddReference(void* pointer) __asm__(
    "_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
__attribute__((visibility("hidden"))) void ReleaseReference(void* pointer) __asm__(
    "_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");

void AddReference(void* pointer) {
  void* copy = nullptr;  // an exception_ptr is one pointer; the copy is never destroyed, so the reference stays
  CopyExceptionPointer(static_cast<void*>(&copy), pointer);
}

void ReleaseReference(void* pointer) { DestroyExceptionPointer(pointer); }
}
#endif

// NOLINTEND(bugprone-reserved-identifier,bugprone-std-namespace-modification)
