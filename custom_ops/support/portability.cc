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
#endif

// NOLINTEND(bugprone-reserved-identifier,bugprone-std-namespace-modification)
