// The last resort for an epilogue that cuDNN has no plan for: its elementwise functions behind a bare convolution.
#pragma once

#include "cuda/convolution/graph.h"
#include "cuda/convolution/plan.h"

namespace onnxopt::cuda {

// Bytes that RunEpilogue needs.
std::int64_t EpilogueScratch(const ConvolutionProblem& problem);

// y = y + bias, + residual and the activation in the order of the problem, in place. Every step rounds to storage, as
// separate operators would.
void RunEpilogue(const cudnn::Api& api, cudnn::Handle handle, const ConvolutionProblem& problem,
                 const ConvolutionPointers& at, void* scratch);

}  // namespace onnxopt::cuda
