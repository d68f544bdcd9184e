// What the host hands to the kernels of group norms. x and y are [samples, pixels, channels], contiguous.
#pragma once

namespace onnxopt {

constexpr int kGroupNormInputs = 16;

// input: as the kernel's meaning numbers them. A slab is some neighbouring channels of a sample, whole groups of them;
// `parts` blocks share it, each with `part_pixels` pixels (the last one may have fewer, but has one). Block number:
// (sample * slabs + slab) * parts + part. scratch: of every group in its slab, for each part the mean and the sum of
// squares, where the blocks of a slab run in two launches.
struct GroupNormParams {
  const void* input[kGroupNormInputs];
  void* y;
  float* scratch;
  int pixels;
  int slabs;
  int parts;
  int part_pixels;
};

}  // namespace onnxopt
