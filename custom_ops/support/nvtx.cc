#include "support/nvtx.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <string>

#include "support/error.h"
#include "support/portability.h"

namespace onnxopt {
namespace {

constexpr char kVariable[] = "ONNXOPT_NVTX";
constexpr char kLibrary[] = "libnvtx3interop.so.1";  // of the packages nvidia-nvtx and nvidia-nvtx-cu12

struct Nvtx {
  int (*push)(const char* name);
  int (*pop)();
};

std::atomic<const Nvtx*>& Loaded() {
  static std::atomic<const Nvtx*> loaded{nullptr};
  return loaded;
}

Nvtx Load() {
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  Nvtx nvtx{};
  if (library != nullptr) {
    nvtx.push = reinterpret_cast<int (*)(const char*)>(dlsym(library, "nvtxRangePushA"));
    nvtx.pop = reinterpret_cast<int (*)()>(dlsym(library, "nvtxRangePop"));
  }
  if (nvtx.push == nullptr || nvtx.pop == nullptr) {
    throw Error(
        std::string(kVariable) + "=1 asks for ranges of NVTX, and " + kLibrary +
        " cannot be loaded: install nvidia-nvtx with pip and put its folder lib into LD_LIBRARY_PATH, or unset " +
        kVariable);
  }
  return nvtx;
}

}  // namespace

void LoadNvtx() {
  const char* const variable = std::getenv(kVariable);
  if (variable == nullptr || std::string(variable) != "1") return;
  static const Nvtx nvtx = Load();
  Loaded() = &nvtx;
}

NvtxRange::NvtxRange(const char* name) {
  if (const Nvtx* const nvtx = Loaded()) nvtx->push(name);
}

NvtxRange::~NvtxRange() {
  if (const Nvtx* const nvtx = Loaded()) nvtx->pop();
}

}  // namespace onnxopt
