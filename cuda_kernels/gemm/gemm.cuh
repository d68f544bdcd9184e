// What kernels of products of 8-bit floats consist of, and of few rows without matrix units.
#pragma once

#include "gemm/few_rows.cuh"
#include "gemm/widen_codes.cuh"
