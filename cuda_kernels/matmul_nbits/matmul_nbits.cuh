// What generated products include where weights of some have 4 or 8 bits, and none 2.
#pragma once

#include "gemm/all_products.cuh"
#include "matmul_nbits/dequantize.cuh"
#include "matmul_nbits/few_rows.cuh"
#include "matmul_nbits/gate.cuh"
#include "matmul_nbits/spread.cuh"
