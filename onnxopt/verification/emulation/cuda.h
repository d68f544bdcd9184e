// CUDA's language on the CPU: a fiber for each CUDA thread that waits, a block at a time. For kernels that use
// __syncthreads, __shared__ and __shfl_*_sync, and PTX by the functions of device/ptx.cuh. Clusters are not there.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

// Most of <cmath> are special functions, which no kernel calls, and nothing here has to be initialized when a program
// starts: a text takes half as long to compile.
#include <cstddef>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#define __device__
#define __global__ inline  // what nothing launches is not compiled
#define __shared__ static
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)

struct Dim {
  unsigned x;
};
inline Dim threadIdx;
inline Dim blockIdx;
inline Dim gridDim;

namespace emulation {

constexpr unsigned kWarp = 32;
constexpr unsigned kMaxThreads = 1024;     // of a block
constexpr std::size_t kStack = 128 << 10;  // bytes of a fiber

// Where the threads of a block, or of a warp, wait for each other.
struct Barrier {
  unsigned size;
  unsigned waiting;
  unsigned turn;
};

struct Block {
  Barrier all;
  Barrier warps[kMaxThreads / kWarp];
  unsigned long long words[kMaxThreads];
};

// Runs threads one after the other, until one of them waits.
struct Fiber {
  ucontext_t start;
  jmp_buf now;
  char* stack;  // kept until the process ends
  bool idle;
};

inline Block block;
inline Fiber fibers[kMaxThreads];
inline jmp_buf scheduler;
inline Fiber* running = nullptr;
inline unsigned threads = 0;    // of the block
inline unsigned unstarted = 0;  // the first thread of the block that no fiber has begun
inline bool progress = false;   // whether any thread has passed a barrier since this was set
inline void (*body)(const void*) = nullptr;
inline const void* argument = nullptr;

// To the scheduler, until it resumes this fiber.
inline void yield() {
  if (_setjmp(running->now) == 0) _longjmp(scheduler, 1);
}

inline void arrive_and_wait(Barrier& barrier) {
  const unsigned turn = barrier.turn;
  if (++barrier.waiting == barrier.size) {
    barrier.waiting = 0;
    ++barrier.turn;
    progress = true;
    return;
  }
  const unsigned thread = threadIdx.x;
  while (barrier.turn == turn) yield();
  threadIdx.x = thread;
}

inline void run_threads() {
  for (;;) {
    while (unstarted < threads) {
      threadIdx.x = unstarted++;
      body(argument);
    }
    running->idle = true;
    yield();
  }
}

__attribute__((noinline)) inline void resume(Fiber& fiber) {
  running = &fiber;
  if (_setjmp(scheduler) != 0) return;
  if (fiber.stack != nullptr) _longjmp(fiber.now, 1);
  fiber.stack = static_cast<char*>(std::malloc(kStack));  // not filled with zeros: most of it is never touched
  if (fiber.stack == nullptr) std::abort();
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack;
  fiber.start.uc_stack.ss_size = kStack;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, run_threads, 0);
  setcontext(&fiber.start);
}

// Ends the process where all threads that are left wait for one that has ended.
inline void run_block() {
  block.all = {threads, 0, 0};
  for (unsigned warp = 0; warp < threads / kWarp; ++warp) block.warps[warp] = {kWarp, 0, 0};
  std::size_t begun = 0;
  for (unstarted = 0; unstarted < threads;) {
    Fiber& fiber = fibers[begun++];
    fiber.idle = false;
    resume(fiber);
  }
  for (bool waiting = true; waiting;) {
    waiting = progress = false;
    bool ended = false;
    for (std::size_t k = 0; k < begun; ++k) {
      if (fibers[k].idle) continue;
      resume(fibers[k]);
      (fibers[k].idle ? ended : waiting) = true;
    }
    if (waiting && !progress && !ended) {
      std::fprintf(stderr, "a barrier waits for a thread that has ended\n");
      std::_Exit(3);
    }
  }
}

// Blocks run from the last one to the first: what one stores past its part would else be stored again, and right.
inline void run_grid(unsigned blocks, unsigned size) {
  if (size > kMaxThreads) std::abort();
  threads = size;
  gridDim.x = blocks;
  for (blockIdx.x = blocks; blockIdx.x-- > 0;) run_block();
}

// Runs kernel() as a grid of `blocks` blocks of `size` threads, a multiple of a warp.
template <typename Kernel>
void launch(unsigned blocks, unsigned size, Kernel&& kernel) {
  body = [](const void* k) { (*static_cast<const std::remove_reference_t<Kernel>*>(k))(); };
  argument = &kernel;
  run_grid(blocks, size);
}

// Calls an entry point with the parameters that a launch passes.
template <typename Params>
void call(void (*entry)(Params), const void* params) {
  entry(*static_cast<const std::remove_const_t<Params>*>(params));
}

}  // namespace emulation

inline void __syncthreads() { emulation::arrive_and_wait(emulation::block.all); }

[[noreturn]] inline void __trap() { std::abort(); }

// Threads take turns only at barriers.
inline int atomicAdd(int* sum, int x) {
  const int before = *sum;
  *sum += x;
  return before;
}
inline void __threadfence() {}
inline unsigned atomicInc(unsigned* count, unsigned last) {
  const unsigned before = *count;
  *count = before >= last ? 0 : before + 1;
  return before;
}

namespace emulation {

// What lane `from` of this thread's warp gives as x.
template <typename T>
T shuffle(T x, unsigned from) {
  auto& warp = block.warps[threadIdx.x / emulation::kWarp];
  std::memcpy(&block.words[threadIdx.x], &x, sizeof(T));
  arrive_and_wait(warp);
  T other;
  std::memcpy(&other, &block.words[threadIdx.x / kWarp * kWarp + from], sizeof(T));
  arrive_and_wait(warp);
  return other;
}

}  // namespace emulation

template <typename T>
T __shfl_xor_sync(unsigned, T x, int mask) {
  return emulation::shuffle(x, threadIdx.x % emulation::kWarp ^ static_cast<unsigned>(mask));
}

template <typename T>
T __shfl_sync(unsigned, T x, int lane, int lanes) {
  return emulation::shuffle(x, threadIdx.x % emulation::kWarp / lanes * lanes + lane % lanes);
}

template <typename T>
T __shfl_up_sync(unsigned, T x, int distance, int lanes) {
  const unsigned lane = threadIdx.x % emulation::kWarp;
  return emulation::shuffle(x, lane % lanes >= static_cast<unsigned>(distance) ? lane - distance : lane);
}

inline int __any_sync(unsigned, int of_lane) {
  for (unsigned lanes = emulation::kWarp / 2; lanes > 0; lanes /= 2)
    of_lane |= __shfl_xor_sync(0u, of_lane, static_cast<int>(lanes));
  return of_lane;
}

inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits) {
  return static_cast<unsigned>(((static_cast<unsigned long long>(high) << 32) | low) >> (bits & 31));
}

inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  const unsigned long long bytes = (static_cast<unsigned long long>(high) << 32) | low;
  unsigned picked = 0;
  for (int k = 0; k < 4; ++k) picked |= (bytes >> (8 * (selector >> (4 * k) & 7)) & 255) << (8 * k);
  return picked;
}

namespace emulation {

template <typename T, typename Function>
unsigned each_byte(unsigned x, unsigned y, Function&& function) {
  unsigned all = 0;
  for (int k = 0; k < 32; k += 8) {
    all |= (static_cast<unsigned>(function(static_cast<T>(x >> k), static_cast<T>(y >> k))) & 255) << k;
  }
  return all;
}

}  // namespace emulation

#define EMULATE_BYTES(name, type, result)                                           \
  inline unsigned name(unsigned a, unsigned b) {                                    \
    return emulation::each_byte<type>(a, b, [](type x, type y) { return result; }); \
  }
EMULATE_BYTES(__vadd4, unsigned char, x + y)
EMULATE_BYTES(__vsub4, unsigned char, x - y)
EMULATE_BYTES(__vmins4, signed char, x < y ? x : y)
EMULATE_BYTES(__vmaxs4, signed char, x > y ? x : y)
EMULATE_BYTES(__vminu4, unsigned char, x < y ? x : y)
EMULATE_BYTES(__vmaxu4, unsigned char, x > y ? x : y)
#undef EMULATE_BYTES
inline unsigned __vabs4(unsigned a) {
  return emulation::each_byte<signed char>(a, a, [](int x, int) { return x < 0 ? -x : x; });
}

namespace onnxopt {

inline unsigned char* dynamic_shared() {
  alignas(16) static unsigned char memory[1 << 18];
  return memory;
}

}  // namespace onnxopt

template <typename To, typename From>
To bits(From x) {
  To y;
  std::memcpy(&y, &x, sizeof(To));
  return y;
}

inline float __uint_as_float(unsigned x) { return bits<float>(x); }
inline unsigned __float_as_uint(float x) { return bits<unsigned>(x); }
inline float __int_as_float(int x) { return bits<float>(x); }
inline int __float_as_int(float x) { return bits<int>(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((1ull * a * b) >> 32); }
inline float __sinf(float x) { return std::sin(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

// What device/ptx.cuh has in PTX. What is approximate there is exact here.
namespace onnxopt {
namespace ptx {

inline unsigned and_or(unsigned x, unsigned mask, unsigned y) { return (x & mask) | y; }

inline float half_to_float(unsigned short half) {
  const unsigned sign = static_cast<unsigned>(half & 0x8000u) << 16;
  const unsigned exponent = half >> 10 & 31u;
  const unsigned fraction = half & 1023u;
  if (exponent == 31) return bits<float>(sign | 0x7f800000u | fraction << 13);
  if (exponent == 0) return bits<float>(bits<unsigned>(static_cast<float>(fraction) * 0x1p-24f) | sign);
  return bits<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

inline unsigned short float_to_half(float x) {
  const unsigned sign = bits<unsigned>(x) >> 16 & 0x8000u;
  const unsigned magnitude = bits<unsigned>(x) & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return 0x7fffu;
  if (magnitude >= 0x477ff000u) return static_cast<unsigned short>(sign | 0x7c00u);  // from 65520 on
  if (magnitude < 0x38800000u) {                                                     // below 2^-14, in units of 2^-24
    return static_cast<unsigned short>(sign | static_cast<unsigned>(std::nearbyint(std::fabs(x) * 0x1p24f)));
  }
  const unsigned rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
  return static_cast<unsigned short>(sign | (rounded - 0x38000000u) >> 13);
}

inline float exp2(float x) { return std::exp2(x); }
inline float div(float x, float y) { return x / y; }
inline float reciprocal(float x) { return 1.0f / x; }
inline float reciprocal_of_normal(float x) { return 1.0f / x; }
inline float sqrt(float x) { return std::sqrt(x); }

}  // namespace ptx
}  // namespace onnxopt
