// kernels.json and the fatbin beside it, read and checked.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "kernel_file/kind_reader.h"

namespace onnxopt {

struct KernelFile {
  std::string path;
  std::string digest;  // of the file
  std::string domain;  // of the functions that the kernels run
  std::vector<Kernel> kernels;
  std::vector<char> fatbin;          // empty where the artifact has no CUDA code
  std::vector<std::string> folders;  // beside the file, each with the kernels of one more model
};

// The reader of the kind of this name, or nullptr where there is none.
using FindReader = std::function<const KindReader*(const std::string& name)>;

// Empty where there is no file at `path`. Throws Error saying what is wrong and where, if the file or the fatbin it
// names is damaged, mismatched or of another schema. Whatever is returned keeps every rule of the programs in
// onnxopt/.
std::optional<KernelFile> ReadKernelFile(const std::string& path, const FindReader& find);

}  // namespace onnxopt
