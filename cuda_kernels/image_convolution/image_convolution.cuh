// What generated image convolutions include.
#pragma once

#include "image_convolution/float32.cuh"
#include "image_convolution/products.cuh"
