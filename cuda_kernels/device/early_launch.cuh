// Launches that overlap: the host may launch a kernel before the one ahead of it in the stream has ended.
#pragma once

namespace onnxopt {

// The next kernel may be launched from here on. It waits by itself for the end of this one.
__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Nothing that the kernel ahead writes is read before this, and nothing written.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// What a kernel begins with that reads nothing beforehand.
__device__ inline void begin_early() {
  wait_for_previous();
  let_next_begin();
}

// No load is put off to behind this, next to where it is used. Telling again that the next kernel may be launched
// changes nothing else.
__device__ inline void pin_loads() { let_next_begin(); }

}  // namespace onnxopt
