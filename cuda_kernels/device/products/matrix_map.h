// A matrix in memory as the hardware that copies tiles of it knows it: plain data for NVRTC and g++.
#pragma once

namespace onnxopt {

// CUtensorMap, which the driver fills in.
struct alignas(64) MatrixMap {
  unsigned char opaque[128];
};

}  // namespace onnxopt
