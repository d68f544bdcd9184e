#include "cpu/scan.h"

#include "cuda/scan.h"
#include "kernel_file/rowwise.h"
#include "kernel_file/scan.h"
#include "kinds/kind.h"

namespace onnxopt {
namespace {

class ScanKind final : public Kind {
 public:
  const char* name() const override { return "scan"; }

  void ReadMeaning(const JsonReader& json, Kernel* kernel) const override { kernel->meaning.Set(ReadScan(json)); }

  Variant ReadVariant(const JsonReader& json, const Kernel& kernel) const override {
    return ReadScanVariant(json, kernel.meaning.As<Scan>());
  }

  void CheckVariants(const JsonReader& json, bool has_fatbin, Kernel* kernel) const override {
    CheckPasses(kernel->variants, kScanLaunches, json);
    Kind::CheckVariants(json, has_fatbin, kernel);
  }

  bool HasCpuKernels() const override { return true; }

  std::unique_ptr<FusedKernel> MakeCpu(const Kernel& kernel) const override {
    return std::make_unique<ScanCpuKernel>(kernel);
  }

  std::unique_ptr<FusedKernel> MakeCuda(const Kernel& kernel, const cuda::Library& library,
                                        const OrtKernelInfo* info) const override {
    return std::make_unique<cuda::ScanCudaKernel>(kernel, library, info);
  }
};

}  // namespace

namespace kinds {

const Kind& Scan() {
  static const ScanKind kind;
  return kind;
}

}  // namespace kinds
}  // namespace onnxopt
