// The sizes that may come beside one that runs, where shapes come with the input.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "cuda/convolution/plans.h"

namespace onnxopt::cuda {

// Asks the heuristic for these sizes, and keeps its choices: each takes 2 milliseconds or more, which the first runs of
// those sizes need not wait for then.
void ChooseForSizes(const cudnn::Api& api, Context context, const std::string& gpu, const ConvolutionProblem& problem);

// Runs each choice that the artifact holds for these sizes and that nothing ran before, over a few pixels where it can:
// a kernel's first run loads it, which takes 1 to 20 milliseconds. at: the constants of a call. scratch: gives memory
// of so many bytes to work in. What cuDNN refuses is left out. Does nothing where `tune` has not chosen.
void LoadForSizes(const cudnn::Api& api, Context context, Stream stream, const std::string& gpu,
                  const ConvolutionProblem& problem, const ConvolutionPointers& at,
                  const std::function<void*(std::size_t)>& scratch);

}  // namespace onnxopt::cuda
