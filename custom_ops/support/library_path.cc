#include "support/library_path.h"

#include <dlfcn.h>

#include "support/error.h"
#include "support/portability.h"

namespace onnxopt {

std::string FolderOf(const void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string path = info.dli_fname;
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::string BesideThisLibrary(const std::string& name) {
  const std::string folder = FolderOf(reinterpret_cast<const void*>(&BesideThisLibrary));
  if (folder.empty()) throw Error("cannot find the path of libonnxopt_ops.so");
  return folder + "/" + name;
}

}  // namespace onnxopt
