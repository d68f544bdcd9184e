#include "cuda/gemm/product_call.h"

namespace onnxopt::cuda {

std::string NameOfGpu(const Driver& driver) {
  constexpr int kBytes = 256;
  Device device = 0;
  char name[kBytes] = "";
  driver.Check(driver.cuCtxGetDevice(&device), "cannot ask for the GPU");
  driver.Check(driver.cuDeviceGetName(name, kBytes, device), "cannot ask for the GPU's name");
  return name;
}

}  // namespace onnxopt::cuda
