#include "cuda/gemm/gemm.h"

#include <algorithm>

#include "cuda/launch/cublaslt.h"
#include "kernel_file/gemm.h"
#include "kernel_file/generated/readers.h"
#include "kinds/kind.h"

namespace onnxopt {
namespace {

class GemmKind final : public Kind {
 public:
  const char* name() const override { return "gemm"; }

  void ReadMeaning(const JsonReader& json, Kernel* kernel) const override {
    kernel->meaning.Set(ReadGemm(json, kernel->inputs, kernel->outputs));
  }

  Variant ReadVariant(const JsonReader& json, const Kernel& kernel) const override {
    const Gemm& gemm = kernel.meaning.As<Gemm>();
    if (gemm.packed) return ReadPackedVariant(json);
    if (json.Has("role")) return ReadActivatingVariant(json, gemm);
    const bool widens = gemm.has_float8_operands() && !json.Has("rows");
    return widens ? ReadWidenVariant(json) : ReadFewRowsVariant(json, gemm);
  }

  // Those for few rows are optional: cuBLASLt runs every product of floats. Of codes, the one that widens is the first.
  void CheckVariants(const JsonReader& json, bool has_fatbin, Kernel* kernel) const override {
    const Gemm& gemm = kernel->meaning.As<Gemm>();
    const auto count = [&](PackedRole role) {
      const auto is = [&](const Variant& v) { return v.shape.As<PackedRows>().role == role; };
      return std::count_if(kernel->variants.begin(), kernel->variants.end(), is);
    };
    if (has_fatbin && gemm.packed && count(PackedRole::kFloats) != 1) {
      json.Fail("has not one entry point that turns codes into floats");
    }
    if (has_fatbin && gemm.packed && count(PackedRole::kGate) != (gemm.gate ? 1 : 0)) {
      json.Fail("has not the entry points for a gate that it needs");
    }
    if (has_fatbin && gemm.activates_apart()) {
      const auto activates = [](const Variant& v) { return v.shape.Is<ActivationInPlace>(); };
      if (std::count_if(kernel->variants.begin(), kernel->variants.end(), activates) != 1) {
        json.Fail("has not one entry point for its activation");
      }
    }
    if (!has_fatbin) kernel->variants.clear();
    if (!has_fatbin || !gemm.has_float8_operands()) return;
    const auto is_for_few_rows = [](const Variant& v) { return v.shape.Is<FewRows>(); };
    const auto first = std::find_if(kernel->variants.begin(), kernel->variants.end(), is_for_few_rows);
    if (first - kernel->variants.begin() != 1 || !std::all_of(first, kernel->variants.end(), is_for_few_rows)) {
      json.Fail("has " + std::to_string(kernel->variants.size()) +
                " entries, not the one that widens codes and those for few rows behind it");
    }
  }

  std::unique_ptr<FusedKernel> MakeCuda(const Kernel& kernel, const cuda::Library& library,
                                        const OrtKernelInfo* info) const override {
    return std::make_unique<cuda::GemmCudaKernel>(kernel, library, info);
  }

  std::optional<std::string> Obstacle() const override {
    if (cublaslt::Expected()) return std::nullopt;
    return "no libcublasLt.so.12 or .13 is found, which ONNX Runtime's CUDA provider needs as well; "
           "products run as ONNX Runtime runs them";
  }

  bool RunsWithoutFatbin(const Kernel& kernel) const override {
    const Gemm& gemm = kernel.meaning.As<Gemm>();
    return !gemm.packed && !gemm.activates_apart();
  }
};

}  // namespace

namespace kinds {

const Kind& Gemm() {
  static const GemmKind kind;
  return kind;
}

}  // namespace kinds
}  // namespace onnxopt
