// How the kernels of one kind are read.
#pragma once

#include <vector>

#include "kernel_file/kernel.h"
#include "support/json_reader.h"

namespace onnxopt {

// Every member throws Error naming the place of what breaks a rule.
class KindReader {
 public:
  KindReader() = default;
  KindReader(const KindReader&) = delete;
  KindReader& operator=(const KindReader&) = delete;
  virtual ~KindReader() = default;

  // As kernels.json has it.
  virtual const char* name() const = 0;

  // Whether this library has CPU kernels of the kind.
  virtual bool HasCpuKernels() const = 0;

  // Sets kernel->meaning. The kernel's dtypes are already there.
  virtual void ReadMeaning(const JsonReader& json, Kernel* kernel) const = 0;

  // An entry point of the kernel, whose meaning is already there.
  virtual Variant ReadVariant(const JsonReader& json, const Kernel& kernel) const = 0;

  // Checks the entry points together, which lie at `json`. has_fatbin: there is CUDA code.
  virtual void CheckVariants(const JsonReader& json, bool has_fatbin, Kernel* kernel) const = 0;
};

inline void CheckNotEmpty(const JsonReader& json, bool has_fatbin, const std::vector<Variant>& variants) {
  if (has_fatbin && variants.empty()) json.Fail("is empty although there is a fatbin");
}

// What CheckVariants checks; kinds that demand more have an overload for their meaning.
template <typename Meaning>
void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const Meaning& /*meaning*/,
                      std::vector<Variant>* variants) {
  CheckNotEmpty(json, has_fatbin, *variants);
}

}  // namespace onnxopt
