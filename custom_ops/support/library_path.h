// Where the shared libraries of this process lie.
#pragma once

#include <string>

namespace onnxopt {

// The folder of the shared library (or program) that holds `address`; empty where the loader does not know it.
std::string FolderOf(const void* address);

// The path of a file beside this library. Throws Error where the loader does not know where that is.
std::string BesideThisLibrary(const std::string& name);

}  // namespace onnxopt
