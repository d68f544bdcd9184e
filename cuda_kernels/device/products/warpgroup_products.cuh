// Products of a warpgroup, four warps whose number is a multiple of 4: 64 rows, 16 deep, on Hopper's matrix units. They
// run while the warps work on something else. Registers of one in flight are not touched before wait_for_products().
//
// A warp has 16 of the rows; of these, a lane has what a Product of m16n8k16 gives it (device/matrix_words.cuh), in
// kColumns / 8 tiles. The first factor is in registers, as of such a Product, or in shared memory.
//
// In shared memory, rows are 128 bytes, and 8 of them 1024, aligned to as much. The 16 bytes c of row r lie at place
// c ^ r % 8 of it.
#pragma once

#include "device/matrix_words.cuh"

namespace onnxopt {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kWarpgroupProducts = true;
#else
constexpr bool kWarpgroupProducts = false;
#endif

// A factor in shared memory from `address` on. next_columns: bytes to the next 64 columns, of a transposed one.
__device__ inline uint64_t matrix_in_rows(uint32_t address, uint32_t next_columns = 16) {
  const uint32_t low = (address & 0x3ffff) >> 4 | next_columns >> 4 << 16;
  const uint32_t high = 1024 >> 4 | 1u << 30;  // bytes between 8 rows and the next 8; rows of 128 bytes, swizzled
  return static_cast<uint64_t>(high) << 32 | low;
}

// What the warp wrote to registers of products before is there.
__device__ inline void begin_products() {
  if constexpr (kWarpgroupProducts) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void end_products() {
  if constexpr (kWarpgroupProducts) asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Until all groups of products but the newest kLeft have ended.
template <int kLeft>
__device__ inline void wait_for_products() {
  if constexpr (kWarpgroupProducts) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

// The compiler moves no use of these registers across.
template <int kTiles>
__device__ inline void pin(float (&x)[kTiles][4]) {
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    if constexpr (kWarpgroupProducts) {
      asm volatile("" : "+f"(x[j][0]), "+f"(x[j][1]), "+f"(x[j][2]), "+f"(x[j][3])::"memory");
    }
  }
}

template <int kTiles>
__device__ inline void pin(uint32_t (&x)[kTiles][4]) {
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    if constexpr (kWarpgroupProducts) {
      asm volatile("" : "+r"(x[j][0]), "+r"(x[j][1]), "+r"(x[j][2]), "+r"(x[j][3])::"memory");
    }
  }
}

// Nothing that comes later is moved to before x, at least 0 or NaN, is known: ptxas moves waits for products to before
// work that does not need them.
__device__ inline void stay_behind(float x) {
  if constexpr (kWarpgroupProducts) {
    asm volatile(
        "{.reg .pred less; setp.lt.f32 less, %0, 0f00000000; again: @!less bra done; nanosleep.u32 1; bra again; "
        "done:}" ::"f"(x)
        : "memory");
  }
}

// What this thread wrote to shared memory, or knows to be there, is there for products too.
__device__ inline void show_to_products() {
  if constexpr (kWarpgroupProducts) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Threads of the warpgroup have kCount registers from here on, fewer or more than before.
template <int kCount>
__device__ inline void leave_registers() {
  if constexpr (kWarpgroupProducts) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

template <int kCount>
__device__ inline void take_registers() {
  if constexpr (kWarpgroupProducts) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// float32: as TF32, 8 deep, of both in shared memory with a row for each column of b.
//
// add: y += a b, of a in registers, and b with a row in shared memory for each step of its depth. add_shared: the same
// of both in shared memory, with a row for each column of b, or, kByDepth, for each step; or y = a b where `more` is
// false.
template <typename T, int kColumns>
struct WarpgroupProduct;

#ifdef __CUDACC__

#define ONNXOPT_ROW(j) "+f"(y[j][0]), "+f"(y[j][1]), "+f"(y[j][2]), "+f"(y[j][3])
#define ONNXOPT_NUMBERS_8 "%0, %1, %2, %3"
#define ONNXOPT_NUMBERS_16 ONNXOPT_NUMBERS_8 ", %4, %5, %6, %7"
#define ONNXOPT_NUMBERS_24 ONNXOPT_NUMBERS_16 ", %8, %9, %10, %11"
#define ONNXOPT_NUMBERS_32 ONNXOPT_NUMBERS_24 ", %12, %13, %14, %15"
#define ONNXOPT_NUMBERS_40 ONNXOPT_NUMBERS_32 ", %16, %17, %18, %19"
#define ONNXOPT_NUMBERS_48 ONNXOPT_NUMBERS_40 ", %20, %21, %22, %23"
#define ONNXOPT_NUMBERS_56 ONNXOPT_NUMBERS_48 ", %24, %25, %26, %27"
#define ONNXOPT_NUMBERS_64 ONNXOPT_NUMBERS_56 ", %28, %29, %30, %31"
#define ONNXOPT_NUMBERS_72 ONNXOPT_NUMBERS_64 ", %32, %33, %34, %35"
#define ONNXOPT_NUMBERS_80 ONNXOPT_NUMBERS_72 ", %36, %37, %38, %39"
#define ONNXOPT_NUMBERS_88 ONNXOPT_NUMBERS_80 ", %40, %41, %42, %43"
#define ONNXOPT_NUMBERS_96 ONNXOPT_NUMBERS_88 ", %44, %45, %46, %47"
#define ONNXOPT_NUMBERS_104 ONNXOPT_NUMBERS_96 ", %48, %49, %50, %51"
#define ONNXOPT_NUMBERS_112 ONNXOPT_NUMBERS_104 ", %52, %53, %54, %55"
#define ONNXOPT_NUMBERS_120 ONNXOPT_NUMBERS_112 ", %56, %57, %58, %59"
#define ONNXOPT_NUMBERS_128 ONNXOPT_NUMBERS_120 ", %60, %61, %62, %63"
#define ONNXOPT_NUMBERS_136 ONNXOPT_NUMBERS_128 ", %64, %65, %66, %67"
#define ONNXOPT_NUMBERS_144 ONNXOPT_NUMBERS_136 ", %68, %69, %70, %71"
#define ONNXOPT_NUMBERS_152 ONNXOPT_NUMBERS_144 ", %72, %73, %74, %75"
#define ONNXOPT_NUMBERS_160 ONNXOPT_NUMBERS_152 ", %76, %77, %78, %79"
#define ONNXOPT_NUMBERS_168 ONNXOPT_NUMBERS_160 ", %80, %81, %82, %83"
#define ONNXOPT_NUMBERS_176 ONNXOPT_NUMBERS_168 ", %84, %85, %86, %87"
#define ONNXOPT_NUMBERS_184 ONNXOPT_NUMBERS_176 ", %88, %89, %90, %91"
#define ONNXOPT_NUMBERS_192 ONNXOPT_NUMBERS_184 ", %92, %93, %94, %95"
#define ONNXOPT_NUMBERS_200 ONNXOPT_NUMBERS_192 ", %96, %97, %98, %99"
#define ONNXOPT_NUMBERS_208 ONNXOPT_NUMBERS_200 ", %100, %101, %102, %103"
#define ONNXOPT_NUMBERS_216 ONNXOPT_NUMBERS_208 ", %104, %105, %106, %107"
#define ONNXOPT_NUMBERS_224 ONNXOPT_NUMBERS_216 ", %108, %109, %110, %111"
#define ONNXOPT_NUMBERS_232 ONNXOPT_NUMBERS_224 ", %112, %113, %114, %115"
#define ONNXOPT_NUMBERS_240 ONNXOPT_NUMBERS_232 ", %116, %117, %118, %119"
#define ONNXOPT_NUMBERS_248 ONNXOPT_NUMBERS_240 ", %120, %121, %122, %123"
#define ONNXOPT_NUMBERS_256 ONNXOPT_NUMBERS_248 ", %124, %125, %126, %127"
#define ONNXOPT_ROWS_8 ONNXOPT_ROW(0)
#define ONNXOPT_ROWS_16 ONNXOPT_ROWS_8, ONNXOPT_ROW(1)
#define ONNXOPT_ROWS_24 ONNXOPT_ROWS_16, ONNXOPT_ROW(2)
#define ONNXOPT_ROWS_32 ONNXOPT_ROWS_24, ONNXOPT_ROW(3)
#define ONNXOPT_ROWS_40 ONNXOPT_ROWS_32, ONNXOPT_ROW(4)
#define ONNXOPT_ROWS_48 ONNXOPT_ROWS_40, ONNXOPT_ROW(5)
#define ONNXOPT_ROWS_56 ONNXOPT_ROWS_48, ONNXOPT_ROW(6)
#define ONNXOPT_ROWS_64 ONNXOPT_ROWS_56, ONNXOPT_ROW(7)
#define ONNXOPT_ROWS_72 ONNXOPT_ROWS_64, ONNXOPT_ROW(8)
#define ONNXOPT_ROWS_80 ONNXOPT_ROWS_72, ONNXOPT_ROW(9)
#define ONNXOPT_ROWS_88 ONNXOPT_ROWS_80, ONNXOPT_ROW(10)
#define ONNXOPT_ROWS_96 ONNXOPT_ROWS_88, ONNXOPT_ROW(11)
#define ONNXOPT_ROWS_104 ONNXOPT_ROWS_96, ONNXOPT_ROW(12)
#define ONNXOPT_ROWS_112 ONNXOPT_ROWS_104, ONNXOPT_ROW(13)
#define ONNXOPT_ROWS_120 ONNXOPT_ROWS_112, ONNXOPT_ROW(14)
#define ONNXOPT_ROWS_128 ONNXOPT_ROWS_120, ONNXOPT_ROW(15)
#define ONNXOPT_ROWS_136 ONNXOPT_ROWS_128, ONNXOPT_ROW(16)
#define ONNXOPT_ROWS_144 ONNXOPT_ROWS_136, ONNXOPT_ROW(17)
#define ONNXOPT_ROWS_152 ONNXOPT_ROWS_144, ONNXOPT_ROW(18)
#define ONNXOPT_ROWS_160 ONNXOPT_ROWS_152, ONNXOPT_ROW(19)
#define ONNXOPT_ROWS_168 ONNXOPT_ROWS_160, ONNXOPT_ROW(20)
#define ONNXOPT_ROWS_176 ONNXOPT_ROWS_168, ONNXOPT_ROW(21)
#define ONNXOPT_ROWS_184 ONNXOPT_ROWS_176, ONNXOPT_ROW(22)
#define ONNXOPT_ROWS_192 ONNXOPT_ROWS_184, ONNXOPT_ROW(23)
#define ONNXOPT_ROWS_200 ONNXOPT_ROWS_192, ONNXOPT_ROW(24)
#define ONNXOPT_ROWS_208 ONNXOPT_ROWS_200, ONNXOPT_ROW(25)
#define ONNXOPT_ROWS_216 ONNXOPT_ROWS_208, ONNXOPT_ROW(26)
#define ONNXOPT_ROWS_224 ONNXOPT_ROWS_216, ONNXOPT_ROW(27)
#define ONNXOPT_ROWS_232 ONNXOPT_ROWS_224, ONNXOPT_ROW(28)
#define ONNXOPT_ROWS_240 ONNXOPT_ROWS_232, ONNXOPT_ROW(29)
#define ONNXOPT_ROWS_248 ONNXOPT_ROWS_240, ONNXOPT_ROW(30)
#define ONNXOPT_ROWS_256 ONNXOPT_ROWS_248, ONNXOPT_ROW(31)

#define ONNXOPT_PRODUCT(storage, name, columns, r0, r1, r2, r3, r4, r5)                                              \
  template <>                                                                                                        \
  struct WarpgroupProduct<storage, columns> {                                                                        \
    __device__ static void add(float (&y)[columns / 8][4], const uint32_t (&a)[4], uint64_t b) {                     \
      if constexpr (kWarpgroupProducts) {                                                                            \
        asm volatile("{.reg .pred more; setp.ne.b32 more, " r5 ", 0; wgmma.mma_async.sync.aligned.m64n" #columns     \
                     "k16.f32." name "." name " {" ONNXOPT_NUMBERS_##columns "}, {" r0 ", " r1 ", " r2 ", " r3       \
                                                                             "}, " r4 ", more, 1, 1, 1;}"            \
                     : ONNXOPT_ROWS_##columns                                                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));                                  \
      }                                                                                                              \
    }                                                                                                                \
    template <bool kByDepth = false>                                                                                 \
    __device__ static void add_shared(float (&y)[columns / 8][4], uint64_t a, uint64_t b, bool more) {               \
      if constexpr (kWarpgroupProducts) {                                                                            \
        asm volatile("{.reg .pred more; setp.ne.b32 more, " r2 ", 0; wgmma.mma_async.sync.aligned.m64n" #columns     \
                     "k16.f32." name "." name " {" ONNXOPT_NUMBERS_##columns "}, " r0 ", " r1 ", more, 1, 1, 0, " r3 \
                                                                             ";}"                                    \
                     : ONNXOPT_ROWS_##columns                                                                        \
                     : "l"(a), "l"(b), "r"(static_cast<int>(more)), "n"(static_cast<int>(kByDepth)));                \
      }                                                                                                              \
    }                                                                                                                \
  };
#define ONNXOPT_PRODUCTS(columns, r0, r1, r2, r3, r4, r5)          \
  ONNXOPT_PRODUCT(float16, "f16", columns, r0, r1, r2, r3, r4, r5) \
  ONNXOPT_PRODUCT(bfloat16, "bf16", columns, r0, r1, r2, r3, r4, r5)
ONNXOPT_PRODUCTS(32, "%16", "%17", "%18", "%19", "%20", "%21")
ONNXOPT_PRODUCTS(40, "%20", "%21", "%22", "%23", "%24", "%25")
ONNXOPT_PRODUCTS(48, "%24", "%25", "%26", "%27", "%28", "%29")
ONNXOPT_PRODUCTS(56, "%28", "%29", "%30", "%31", "%32", "%33")
ONNXOPT_PRODUCTS(64, "%32", "%33", "%34", "%35", "%36", "%37")
ONNXOPT_PRODUCTS(72, "%36", "%37", "%38", "%39", "%40", "%41")
ONNXOPT_PRODUCTS(80, "%40", "%41", "%42", "%43", "%44", "%45")
ONNXOPT_PRODUCTS(88, "%44", "%45", "%46", "%47", "%48", "%49")
ONNXOPT_PRODUCTS(96, "%48", "%49", "%50", "%51", "%52", "%53")
ONNXOPT_PRODUCTS(104, "%52", "%53", "%54", "%55", "%56", "%57")
ONNXOPT_PRODUCTS(112, "%56", "%57", "%58", "%59", "%60", "%61")
ONNXOPT_PRODUCTS(120, "%60", "%61", "%62", "%63", "%64", "%65")
ONNXOPT_PRODUCTS(128, "%64", "%65", "%66", "%67", "%68", "%69")
ONNXOPT_PRODUCTS(136, "%68", "%69", "%70", "%71", "%72", "%73")
ONNXOPT_PRODUCTS(144, "%72", "%73", "%74", "%75", "%76", "%77")
ONNXOPT_PRODUCTS(152, "%76", "%77", "%78", "%79", "%80", "%81")
ONNXOPT_PRODUCTS(160, "%80", "%81", "%82", "%83", "%84", "%85")
ONNXOPT_PRODUCTS(168, "%84", "%85", "%86", "%87", "%88", "%89")
ONNXOPT_PRODUCTS(176, "%88", "%89", "%90", "%91", "%92", "%93")
ONNXOPT_PRODUCTS(184, "%92", "%93", "%94", "%95", "%96", "%97")
ONNXOPT_PRODUCTS(192, "%96", "%97", "%98", "%99", "%100", "%101")
ONNXOPT_PRODUCTS(200, "%100", "%101", "%102", "%103", "%104", "%105")
ONNXOPT_PRODUCTS(208, "%104", "%105", "%106", "%107", "%108", "%109")
ONNXOPT_PRODUCTS(216, "%108", "%109", "%110", "%111", "%112", "%113")
ONNXOPT_PRODUCTS(224, "%112", "%113", "%114", "%115", "%116", "%117")
ONNXOPT_PRODUCTS(232, "%116", "%117", "%118", "%119", "%120", "%121")
ONNXOPT_PRODUCTS(240, "%120", "%121", "%122", "%123", "%124", "%125")
ONNXOPT_PRODUCTS(248, "%124", "%125", "%126", "%127", "%128", "%129")
ONNXOPT_PRODUCTS(256, "%128", "%129", "%130", "%131", "%132", "%133")
#undef ONNXOPT_PRODUCTS
#undef ONNXOPT_PRODUCT

#define ONNXOPT_PRODUCT_OF_TF32(columns, r0, r1, r2)                                                             \
  template <>                                                                                                    \
  struct WarpgroupProduct<float, columns> {                                                                      \
    __device__ static void add_shared(float (&y)[columns / 8][4], uint64_t a, uint64_t b, bool more) {           \
      if constexpr (kWarpgroupProducts) {                                                                        \
        asm volatile("{.reg .pred more; setp.ne.b32 more, " r2 ", 0; wgmma.mma_async.sync.aligned.m64n" #columns \
                     "k8.f32.tf32.tf32 {" ONNXOPT_NUMBERS_##columns "}, " r0 ", " r1 ", more, 1, 1;}"            \
                     : ONNXOPT_ROWS_##columns                                                                    \
                     : "l"(a), "l"(b), "r"(static_cast<int>(more)));                                             \
      }                                                                                                          \
    }                                                                                                            \
  };
ONNXOPT_PRODUCT_OF_TF32(128, "%64", "%65", "%66")
ONNXOPT_PRODUCT_OF_TF32(192, "%96", "%97", "%98")
ONNXOPT_PRODUCT_OF_TF32(256, "%128", "%129", "%130")
#undef ONNXOPT_PRODUCT_OF_TF32

#endif

}  // namespace onnxopt
