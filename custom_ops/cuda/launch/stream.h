// The stream that ONNX Runtime has a call run on.
#pragma once

#include "cuda/launch/driver.h"
#include "support/ort.h"

namespace onnxopt::cuda {

struct StreamOfCall {
  Stream stream;
  Context context;  // current on this thread
};

// The stream of a call, on which alone it may launch; makes sure that a CUDA context is current.
StreamOfCall EnterStream(const Driver& driver, OrtKernelContext* call);

}  // namespace onnxopt::cuda
