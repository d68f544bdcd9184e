// Lets a library that was built on a recent Linux run on older ones: glibc 2.28 and the libstdc++ of GCC 8.
//
// Functions that glibc moved or gave a new version are bound to the version that older releases have as well; what
// newer libstdc++ headers refer to besides is defined in portability.cc. Included where such functions are called.
#pragma once

#include <features.h>

#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))
#if defined(__x86_64__)
#define ONNXOPT_FIRST_GLIBC "GLIBC_2.2.5"
#else
#define ONNXOPT_FIRST_GLIBC "GLIBC_2.17"
#endif
// 2.34 moved these from libdl to libc; 2.29 gave the others versions that do not set errno the old way.
__asm__(".symver dlopen,dlopen@" ONNXOPT_FIRST_GLIBC);
__asm__(".symver dlsym,dlsym@" ONNXOPT_FIRST_GLIBC);
__asm__(".symver dladdr,dladdr@" ONNXOPT_FIRST_GLIBC);
__asm__(".symver exp,exp@" ONNXOPT_FIRST_GLIBC);
__asm__(".symver log,log@" ONNXOPT_FIRST_GLIBC);
__asm__(".symver log2,log2@" ONNXOPT_FIRST_GLIBC);
__asm__(".symver pow,pow@" ONNXOPT_FIRST_GLIBC);
#undef ONNXOPT_FIRST_GLIBC
#endif
