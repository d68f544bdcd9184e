// The last resort for what cuDNN has no plan for: its elementwise functions around a convolution.
#pragma once

#include "cuda/convolution/graph.h"
#include "cuda/convolution/plan.h"

namespace onnxopt::cuda {

// Bytes that RunEpilogue needs.
std::int64_t EpilogueScratch(const ConvolutionProblem& problem);

// Where pixels lie, and how many elements apart.
struct PixelsAt {
  void* data;
  std::int64_t pixel;
};

// to = y + bias, + residual and the activation in the order of the problem; y is overwritten, and may be where `to` is.
// Every step rounds to storage, as separate operators would.
void RunEpilogue(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem,
                 const ConvolutionPointers& at, const PixelsAt& to, void* scratch);

// Copies the result of a problem, where it does not lie there already.
void CopyResult(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem, const void* y,
                const PixelsAt& to);

// Pixels [n, h, w] of c elements.
struct Pixels {
  std::int64_t n, h, w, c;
};

// Copies pixels that lie `from_pixel` elements apart to where they are `to_pixel` apart.
void CopyPixels(const cudnn::Api& api, cudnn::Handle handle, Dtype dtype, const Pixels& pixels, const void* from,
                std::int64_t from_pixel, void* to, std::int64_t to_pixel);

}  // namespace onnxopt::cuda
