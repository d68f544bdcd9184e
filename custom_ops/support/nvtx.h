// Ranges of NVTX around the runs of fused functions, where ONNXOPT_NVTX=1: profilers show by them which function a
// kernel of cuBLASLt or cuDNN belongs to.
#pragma once

namespace onnxopt {

// Loads NVTX where the variable asks for it. Throws Error where it cannot be loaded. A second call does nothing.
void LoadNvtx();

// A range from here to the end of the scope; nothing without NVTX.
class NvtxRange {
 public:
  explicit NvtxRange(const char* name);
  ~NvtxRange();
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace onnxopt
