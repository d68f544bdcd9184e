// What the host hands to the kernel that widens codes: plain data for NVRTC and g++.
#pragma once

namespace onnxopt {

struct WidenCodesParams {
  const void* codes;  // float8e4m3fn
  void* numbers;      // float16, aligned to 16 bytes
  unsigned long long count;
};

constexpr unsigned kWidenedCodes = 8;  // by a thread

}  // namespace onnxopt
