// Convolutions of images in kernels.json.
#pragma once

#include <vector>

#include "kernel_file/kernel.h"
#include "program/generated/image_convolution.h"
#include "support/json_reader.h"

namespace onnxopt {

// What only entry points of these kernels have; onnxopt/kinds/image_convolution/tiles.py says what each means.
struct ImageTileShape {
  unsigned across = 16;
  unsigned down = 1;
  unsigned filters = 8;
  bool exact = false;
};

Variant ReadImageConvolutionVariant(const JsonReader& json, const ImageConvolution& convolution);

}  // namespace onnxopt
