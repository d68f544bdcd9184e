// Copies of tiles of a matrix to shared memory, by hardware that Hopper has for it.
#pragma once

#include "device/arrivals.cuh"
#include "device/products/matrix_map.h"

namespace onnxopt {

// The one arrival of a phase, which ends once so many bytes have come as well.
__device__ inline void expect_bytes(uint32_t barrier, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}

// Begins copying the tile whose first element has these places in its row and among the rows. What lies outside of the
// matrix comes as zeros. The map is a parameter of the kernel.
__device__ inline void copy_tile(uint32_t to, const MatrixMap& map, uint32_t barrier, unsigned in_row, unsigned row) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
          "r"(to),
      "l"(&map), "r"(barrier), "r"(in_row), "r"(row)
      : "memory");
#endif
}

}  // namespace onnxopt
