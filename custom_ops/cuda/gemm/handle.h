// cuBLASLt's handles.
#pragma once

#include "cuda/launch/cublaslt.h"
#include "cuda/launch/driver.h"

namespace onnxopt::cuda {

// The handle of a context, made when it is first asked for. Handles may be shared by threads and live as long as the
// process. Throws Error where cuBLASLt does not start on this GPU.
cublaslt::Handle HandleOf(Context context, const cublaslt::Api& api);

}  // namespace onnxopt::cuda
