// Lets a library that was built on a recent Linux run on older ones: glibc 2.28 and the libstdc++ of GCC 8.
//
// Functions that glibc moved or gave a new version are bound to the version that older releases have as well; what
// newer libstdc++ headers refer to besides is defined in portability.cc. Included where such functions are called.
#pragma once

#include <features.h>

#if defined(__x86_64__) && defined(__GLIBC__)
// 2.34 moved these from libdl to libc; 2.29 gave the others versions that do not set errno the old way.
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
__asm__(".symver dladdr,dladdr@GLIBC_2.2.5");
__asm__(".symver exp,exp@GLIBC_2.2.5");
__asm__(".symver log,log@GLIBC_2.2.5");
__asm__(".symver pow,pow@GLIBC_2.2.5");
#endif
