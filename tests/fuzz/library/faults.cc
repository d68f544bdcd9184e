// Calls of the CUDA driver and allocations of device memory that fail, each in turn:
//   faults <folder with kernels.json> <folder of the stand-ins>
// A failing call must become a status that says which CUDA error it was; nothing may leak, crash, or go on with what
// was not made. Prints a line a fault of which that does not hold. Every function has a process of its own, as what a
// GPU said of itself and what was measured are not asked for again.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "exercise.h"
#include "registry/kinds.h"
#include "stand_in_gpu.h"

namespace onnxopt::exercise {
namespace {

constexpr int kMostCalls = 40;
constexpr const char* kSaid = "CUDA_ERROR_OF_THE_TEST: as the test asked";

// The number of calls of this function whose failure is not told.
int Failures(const KernelFile& file, const Case& call, const std::string& function) {
  int unclear = 0;
  for (int which = 1; which <= kMostCalls; ++which) {
    stand_in::SetFailure({function, which, 2});
    const std::string error = RunOnGpu(file, call);
    if (!stand_in::HasFailed()) break;
    if (error.find(kSaid) != std::string::npos) continue;
    if (error.empty() && StatesShapes()) continue;  // a first run that is not measured runs all the same
    ++unclear;
    std::printf("%s: call %d of %s failed: \"%s\"\n", call.kernel.c_str(), which, function.c_str(), error.c_str());
  }
  stand_in::SetFailure({});
  return unclear;
}

int OutOfMemory(const KernelFile& file, const Case& call) {
  int unclear = 0;
  for (int which = 1; which <= kMostCalls; ++which) {
    stand_in::failing_allocation = which;
    const std::string error = RunOnGpu(file, call);
    const bool failed = stand_in::failing_allocation == 0;
    stand_in::failing_allocation = 0;
    if (!failed) break;
    if (error.find("no memory") != std::string::npos) continue;
    // Nor need kernels for other sizes be loaded, where the artifact names some.
    if (error.empty() && (StatesShapes() || std::getenv("LOADS_SIZES") != nullptr)) continue;
    ++unclear;
    std::printf("%s: allocation %d failed: \"%s\"\n", call.kernel.c_str(), which, error.c_str());
  }
  return unclear;
}

// function: empty for allocations of memory.
int Examine(const KernelFile& file, const std::vector<Case>& cases, const std::string& function) {
  int unclear = 0;
  for (const char* variable : {"ONNXOPT_LAUNCH_TUNE", "ONNXOPT_GEMM_TUNE", "ONNXOPT_CONV_TUNE"}) {
    if (const char* measured = std::getenv(variable)) std::remove(measured);  // by the process before this one
  }
  for (const Case& call : cases) {
    unclear += function.empty() ? OutOfMemory(file, call) : Failures(file, call, function);
    const std::string error = RunOnGpu(file, call);
    if (error.empty()) continue;
    std::printf("%s: fails without a fault: \"%s\"\n", call.kernel.c_str(), error.c_str());
    ++unclear;
  }
  return unclear;
}

int Run(const std::string& folder) {
  const std::string path = folder + "/kernels.json";
  const std::optional<KernelFile> file = ReadKernelFile(path, FindKind);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  const std::vector<Case> cases = ReadCases(nlohmann::json::parse(text.str()));
  std::vector<std::string> functions = stand_in::DriverFunctions();
  functions.emplace_back();
  int unclear = 0;
  for (const std::string& function : functions) {
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) std::exit(Examine(*file, cases, function) == 0 ? 0 : 1);
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    ++unclear;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 1) std::printf("%s: status %d\n", function.c_str(), status);
  }
  return unclear;
}

}  // namespace
}  // namespace onnxopt::exercise

int main(int count, char** arguments) {
  using namespace onnxopt::exercise;
  if (count != 3) return 2;
  Prepare(arguments[2]);
  try {
    return Run(arguments[1]) == 0 ? 0 : 1;
  } catch (const std::exception& e) {
    std::printf("%s\n", e.what());
    return 3;
  }
}
