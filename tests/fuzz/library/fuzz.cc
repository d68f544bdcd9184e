// The target for libFuzzer: a kernel file with its cases (exercise.h), a file of what was measured, or a fatbin. Files
// get a digest that fits, as it would keep the fuzzer from going on. ONNXOPT_FUZZ_FATBIN names the fatbin that kernel
// files refer to.
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "exercise.h"
#include "kernel_file/fatbin.h"
#include "kernel_file/measured/convolution_plans.h"
#include "kernel_file/measured/gemm_algorithms.h"
#include "kernel_file/measured/launch_choices.h"
#include "registry/kinds.h"
#include "support/sealed_json.h"

namespace onnxopt::exercise {
namespace {

constexpr char kFatbinStart[] = {'\x50', '\xed', '\x55', '\xba'};

std::string MakeFolder() {
  char name[] = "/tmp/onnxopt_fuzz_XXXXXX";
  if (mkdtemp(name) == nullptr) std::abort();
  if (const char* fatbin = std::getenv("ONNXOPT_FUZZ_FATBIN")) {
    std::ofstream(std::string(name) + "/kernels.fatbin", std::ios::binary)
        << std::ifstream(fatbin, std::ios::binary).rdbuf();
  }
  return name;
}

const std::string& Folder() {
  static const std::string folder = MakeFolder();
  return folder;
}

void ReadFatbin(const std::string& bytes) {
  const std::vector<char> fatbin(bytes.begin(), bytes.end());
  unsigned fitting = 0;
  for (const cuda::Image& image : cuda::Images(fatbin)) fitting += image.RunsOn(9, 0) ? 1 : 0;
  if (fitting > fatbin.size()) std::abort();
}

void ReadMeasurements(const std::string& text) {
  cuda::LaunchTable launches;
  cuda::AlgorithmTable algorithms;
  cuda::PlanTable plans;
  cuda::ExpectedTable expected;
  try {
    ReadMeasured(text, "launches.json", [&](const JsonReader& entry) { ReadMeasuredLaunch(entry, &launches); });
  } catch (const Error&) {
  }
  try {
    ReadMeasured(text, "gemm_algos.json", [&](const JsonReader& entry) { ReadTunedAlgorithm(entry, &algorithms); });
  } catch (const Error&) {
  }
  try {
    ReadMeasured(text, "conv_plans.json", [&](const JsonReader& entry) { ReadPlan(entry, &plans, &expected); });
  } catch (const Error&) {
  }
}

void RunKernels(const std::string& text) {
  const std::string path = Folder() + "/kernels.json";
  std::ofstream(path, std::ios::binary) << text;
  std::optional<KernelFile> file;
  try {
    file = ReadKernelFile(path, FindKind);
  } catch (const Error&) {
    return;
  }
  for (const Case& call : ReadCases(nlohmann::json::parse(text))) {
    for (const Kernel& kernel : file->kernels) {
      if (kernel.name != call.kernel || call.inputs.size() != kernel.inputs.size()) continue;
      RunOnCpu(kernel, call, kernel.inputs);
    }
    RunOnGpu(*file, call);
  }
}

// With a digest that fits what stands behind the first line.
std::string Resealed(const std::string& text) {
  const std::size_t line = text.find('\n');
  return line == std::string::npos ? text : SealedText(text.substr(line + 1));
}

}  // namespace
}  // namespace onnxopt::exercise

extern "C" int LLVMFuzzerInitialize(int* /*count*/, char*** /*arguments*/) {
  onnxopt::exercise::Prepare("");
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace onnxopt::exercise;
  const std::string text(reinterpret_cast<const char*>(data), size);
  if (text.compare(0, sizeof(kFatbinStart), kFatbinStart, sizeof(kFatbinStart)) == 0) {
    ReadFatbin(text);
  } else if (text.find("\"kernels\"") == std::string::npos) {
    ReadMeasurements(Resealed(text));
  } else {
    RunKernels(Resealed(text));
  }
  return 0;
}
