// What generated depthwise kernels include.
#pragma once

#include "depthwise/banded.cuh"
#include "depthwise/direct.cuh"
#include "depthwise/held.cuh"
#include "depthwise/expanded.cuh"
