// A kind of kernels: everything that is told apart by it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <type_traits>

#include "call/fused_kernel.h"
#include "kernel_file/kind_reader.h"

namespace onnxopt {

namespace cuda {
class Library;
}

// One object a kind, listed in generated/kinds.cc.
class Kind : public KindReader {
 public:
  // Called where the kind has CPU kernels and kernels.json says that this one pays.
  virtual std::unique_ptr<FusedKernel> MakeCpu(const Kernel& kernel) const = 0;

  // library: where the kernel's CUDA code lies. info: of the node. Not called where the kind has an obstacle.
  virtual std::unique_ptr<FusedKernel> MakeCuda(const Kernel& kernel, const cuda::Library& library,
                                                const OrtKernelInfo* info) const = 0;

  // Why no kernel of this kind runs on this machine's GPU, and what follows; nothing where all of them do.
  virtual std::optional<std::string> Obstacle() const = 0;

  // Whether a kernel runs on a GPU without code of its own in the fatbin.
  virtual bool RunsWithoutFatbin(const Kernel& kernel) const = 0;

  // The major compute capability from which a kernel is faster than the original nodes; 0 for all.
  virtual int FirstMajor(const Kernel& kernel) const = 0;

  // Whether a kernel reads an element of an input that has output 0's shape before it writes that element, and nothing
  // of it afterwards.
  virtual bool MayRunInPlace(const Kernel& kernel) const = 0;
};

// kReadMeaning, kReadVariant: the kind's readers. Cuda, Cpu: its kernels; void for none on the CPU.
template <auto kReadMeaning, auto kReadVariant, typename Cuda, typename Cpu = void>
class KindRow final : public Kind {
 public:
  explicit KindRow(const char* name) : name_(name) {}

  const char* name() const override { return name_; }
  bool HasCpuKernels() const override { return !std::is_void_v<Cpu>; }

  void ReadMeaning(const JsonReader& json, Kernel* kernel) const override {
    if constexpr (std::is_invocable_v<decltype(kReadMeaning), const JsonReader&>) {
      kernel->meaning.Set(kReadMeaning(json));
    } else {
      kernel->meaning.Set(kReadMeaning(json, kernel->inputs, kernel->outputs));
    }
  }

  Variant ReadVariant(const JsonReader& json, const Kernel& kernel) const override {
    return kReadVariant(json, MeaningOf(kReadVariant, kernel));
  }

  void CheckVariants(const JsonReader& json, bool has_fatbin, Kernel* kernel) const override {
    CheckEntryPoints(json, has_fatbin, MeaningOf(kReadVariant, *kernel), &kernel->variants);
  }

  std::unique_ptr<FusedKernel> MakeCpu(const Kernel& kernel) const override {
    if constexpr (std::is_void_v<Cpu>) {
      static_cast<void>(kernel);
      return nullptr;
    } else {
      return std::make_unique<Cpu>(kernel);
    }
  }

  std::unique_ptr<FusedKernel> MakeCuda(const Kernel& kernel, const cuda::Library& library,
                                        const OrtKernelInfo* info) const override {
    return std::make_unique<Cuda>(kernel, library, info);
  }

  std::optional<std::string> Obstacle() const override { return Cuda::Obstacle(); }
  bool RunsWithoutFatbin(const Kernel& kernel) const override { return Cuda::RunsWithoutFatbin(kernel); }
  bool MayRunInPlace(const Kernel& kernel) const override { return Cuda::MayRunInPlace(kernel); }
  int FirstMajor(const Kernel& kernel) const override { return Cuda::FirstMajor(kernel); }

 private:
  template <typename Meaning>
  static const Meaning& MeaningOf(Variant (*)(const JsonReader&, const Meaning&), const Kernel& kernel) {
    return kernel.meaning.As<Meaning>();
  }

  const char* const name_;
};

}  // namespace onnxopt
