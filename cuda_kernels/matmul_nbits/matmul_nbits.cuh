// What generated products include where weights of some have 4 or 8 bits.
#pragma once

#include "gemm/gemm.cuh"
#include "matmul_nbits/dequantize.cuh"
#include "matmul_nbits/few_rows.cuh"
#include "matmul_nbits/gate.cuh"
