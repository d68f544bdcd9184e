// CUDA's language on the CPU: one OS thread a CUDA thread, a block at a time. For kernels of float32 and integers that
// use __syncthreads, __shared__ and __shfl_*_sync; inline PTX of other dtypes is left out, clusters are not there.
#pragma once

#include <barrier>
#include <cmath>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __device__
#define __global__
#define __shared__ static
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(threads)
#define asm(...) ((void)0)

struct Dim {
  unsigned x;
};
inline thread_local Dim threadIdx;
inline thread_local Dim blockIdx;
inline Dim gridDim;

namespace emulation {

constexpr int kWarp = 32;

struct Block {
  explicit Block(int threads) : all(threads), warps(threads / kWarp), words(threads) {
    for (auto& warp : warps) warp = std::make_unique<std::barrier<>>(kWarp);
  }
  std::barrier<> all;
  std::vector<std::unique_ptr<std::barrier<>>> warps;
  std::vector<unsigned long long> words;
};

inline Block* block = nullptr;

// Runs kernel() as a grid of `blocks` blocks of `threads` threads, a multiple of a warp.
template <typename Kernel>
void launch(unsigned blocks, int threads, Kernel&& kernel) {
  gridDim.x = blocks;
  for (unsigned b = 0; b < blocks; ++b) {
    Block now(threads);
    block = &now;
    std::vector<std::thread> running;
    for (int t = 0; t < threads; ++t) {
      running.emplace_back([&, t] {
        threadIdx.x = static_cast<unsigned>(t);
        blockIdx.x = b;
        kernel();
      });
    }
    for (auto& thread : running) thread.join();
  }
}

}  // namespace emulation

inline void __syncthreads() { emulation::block->all.arrive_and_wait(); }

namespace emulation {

// What lane `from` of this thread's warp gives as x.
template <typename T>
T shuffle(T x, unsigned from) {
  auto& block = *emulation::block;
  auto& warp = *block.warps[threadIdx.x / emulation::kWarp];
  std::memcpy(&block.words[threadIdx.x], &x, sizeof(T));
  warp.arrive_and_wait();
  T other;
  std::memcpy(&other, &block.words[threadIdx.x / kWarp * kWarp + from], sizeof(T));
  warp.arrive_and_wait();
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
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
