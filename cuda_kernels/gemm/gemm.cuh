// All that kernels of products may consist of.
#pragma once

#include "gemm/few_rows.cuh"
#include "gemm/widen_codes.cuh"
