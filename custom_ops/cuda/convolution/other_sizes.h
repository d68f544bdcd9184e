// The sizes that may come beside one that runs, where shapes come with the input.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "cuda/convolution/plans.h"
#include "cuda/launch/driver.h"

namespace onnxopt::cuda {

// Asks the heuristic for these sizes, and keeps its choices: each takes 2 milliseconds or more, which the first runs of
// those sizes need not wait for then.
void ChooseForSizes(const cudnn::Api& api, Context context, const std::string& gpu, const ConvolutionProblem& problem);

// Where a plan runs, to be timed. scratch: gives memory of so many bytes to work in.
struct TimedOn {
  const cudnn::Api& api;
  const Driver& driver;
  Context context;
  Stream stream;
  const std::string& gpu;
  std::function<void*(std::size_t)> scratch;
};

// Times the choice for a problem's size beside the next ones over these operands, once for all of about that size, and
// keeps the fastest. Returns whether that is another one. What cuDNN refuses is left out. Throws Error where the GPU
// has no memory left.
bool TimeForSize(const TimedOn& on, const ConvolutionProblem& problem, const ConvolutionPointers& at);

// The same for the sizes around a problem's, over operands of no particular numbers, where these are not large.
void TimeForSizes(const TimedOn& on, const ConvolutionProblem& problem, const ConvolutionPointers& at);

// Runs each choice that the artifact holds for these sizes and that nothing ran before, over a few pixels where it can:
// a kernel's first run loads it, which takes 1 to 20 milliseconds. at: the constants of a call. scratch: gives memory
// of so many bytes to work in. What cuDNN refuses is left out. Does nothing where `tune` has not chosen.
void LoadForSizes(const cudnn::Api& api, Context context, Stream stream, const std::string& gpu,
                  const ConvolutionProblem& problem, const ConvolutionPointers& at,
                  const std::function<void*(std::size_t)>& scratch);

}  // namespace onnxopt::cuda
