// What generated depthwise kernels include.
#pragma once

#include "depthwise/banded.cuh"
#include "depthwise/expanded.cuh"
#include "depthwise/held.cuh"
#include "depthwise/walking.cuh"
