// Tensors in files, as numpy's tofile writes them and fromfile reads them.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace emulation {

template <typename T>
std::vector<T> read(const std::string& name, std::size_t count) {
  std::vector<T> values(count);
  std::FILE* file = std::fopen(name.c_str(), "rb");
  if (file == nullptr || std::fread(values.data(), sizeof(T), count, file) != count) std::exit(2);
  std::fclose(file);
  return values;
}

template <typename T>
void write(const std::string& name, const std::vector<T>& values) {
  std::FILE* file = std::fopen(name.c_str(), "wb");
  if (file == nullptr || std::fwrite(values.data(), sizeof(T), values.size(), file) != values.size()) std::exit(2);
  if (std::fclose(file) != 0) std::exit(2);
}

}  // namespace emulation
