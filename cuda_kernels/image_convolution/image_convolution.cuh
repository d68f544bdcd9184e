// What generated image convolutions include.
#pragma once

#include "image_convolution/products.cuh"
