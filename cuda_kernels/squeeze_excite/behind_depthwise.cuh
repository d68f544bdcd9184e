// What generated kernels include where a depthwise convolution computes the map and the sums of its tiles.
#pragma once

#include "depthwise/depthwise.cuh"
#include "squeeze_excite/squeeze_excite.cuh"
