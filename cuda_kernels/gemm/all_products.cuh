// All that kernels of products without packed weights may consist of.
#pragma once

#include "gemm/few_rows_codes.cuh"
#include "gemm/gemm.cuh"
