// Runs the kernels of a kernel file on stand-ins for ONNX Runtime and the CUDA driver.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernel_file/kernel_file.h"
#include "stand_in_ort.h"

namespace onnxopt::exercise {

using Dims = std::vector<std::int64_t>;

// A call of a kernel: the shapes of its inputs.
struct Case {
  std::string kernel;
  std::vector<Dims> inputs;
};

// The field "cases" of a kernel file, which the library does not read: {kernel: [[dims of each input], ...]}. What is
// no case is left out.
std::vector<Case> ReadCases(const nlohmann::json& file);

// What came of a call. error: the message of a status; then the outputs are those that were made until then.
struct Result {
  std::string error;
  std::vector<stand_in::Tensor> outputs;
};

bool HasCpuKernel(const Kernel& kernel);

// inputs: dtypes that the node has in the model. Nothing where there is no CPU kernel.
Result RunOnCpu(const Kernel& kernel, const Case& call, const std::vector<Dtype>& inputs);

// Whether the graph states the shapes of every call, so that first runs measure: where STATES_SHAPES is set.
bool StatesShapes();

// On the stand-in for the driver, through the variants. Nothing is computed. Where something fails, the message.
std::string RunOnGpu(const KernelFile& file, const Case& call);

bool Same(const Result& a, const Result& b);

// Stand-ins in place of what ONNX Runtime and the machine provide. folder: of the stand-ins for cuBLASLt and cuDNN, or
// empty.
void Prepare(const std::string& folder);

}  // namespace onnxopt::exercise
