// Tensors in files, as numpy's tofile writes them and fromfile reads them.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace emulation {

template <typename T>
std::vector<T> read(const char* name, std::size_t count) {
  std::vector<T> values(count);
  std::FILE* file = std::fopen(name, "rb");
  if (file == nullptr || std::fread(values.data(), sizeof(T), count, file) != count) std::exit(2);
  std::fclose(file);
  return values;
}

template <typename T>
void write(const char* name, const std::vector<T>& values) {
  std::FILE* file = std::fopen(name, "wb");
  if (file == nullptr || std::fwrite(values.data(), sizeof(T), values.size(), file) != values.size()) std::exit(2);
  if (std::fclose(file) != 0) std::exit(2);
}

}  // namespace emulation

// files.cc has them compiled for all programs.
#define INSTANTIATE(externally, T)                                                  \
  externally template class std::vector<T>;                                         \
  externally template std::vector<T> emulation::read<T>(const char*, std::size_t);  \
  externally template void emulation::write<T>(const char*, const std::vector<T>&); \
  static_assert(true)
INSTANTIATE(extern, float);
INSTANTIATE(extern, unsigned short);
