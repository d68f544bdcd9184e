// A kernel of a case on the CPU: tensors in files, and launches with the parameters that kernel_launches.cc printed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace emulation {

constexpr std::uint64_t kTag = 0x5A5A00, kTensorBits = 40;  // as kernel_launches.cc has them
constexpr std::size_t kAligned = 256, kResult = 16, kScratch = 17, kMargin = 512;
constexpr unsigned char kUnwritten = 0xff;

// Bytes at an address that is a multiple of 256 and `offset` more, with kMargin bytes of kUnwritten on either side.
class Tensor {
 public:
  explicit Tensor(std::size_t size = 0, std::size_t offset = 0)
      : size_(size), held_(size + 2 * kMargin + 256, kUnwritten) {
    const auto first = reinterpret_cast<std::uintptr_t>(held_.data()) + kMargin;
    data_ = held_.data() + kMargin + (256 - first % 256) % 256 + offset % 256;
  }
  unsigned char* data() { return data_; }
  void reset() { std::memset(held_.data(), kUnwritten, held_.size()); }
  bool only_inside_is_written() const {
    const auto unwritten = [](unsigned char byte) { return byte == kUnwritten; };
    return std::all_of(held_.data(), static_cast<const unsigned char*>(data_), unwritten) &&
           std::all_of(static_cast<const unsigned char*>(data_) + size_, held_.data() + held_.size(), unwritten);
  }

 private:
  std::size_t size_ = 0;
  std::vector<unsigned char> held_;
  unsigned char* data_ = nullptr;
};

inline void bytes_of(const std::string& name, void* data, std::size_t size) {
  std::FILE* file = std::fopen(name.c_str(), "rb");
  if (file == nullptr || std::fread(data, 1, size, file) != size) std::exit(2);
  std::fclose(file);
}

// The tensors of a call, and what is launched for it. aligned: bytes that addresses are multiples of, but for those of
// the constants (a bit an input).
class Call {
 public:
  Call(std::string name, const std::vector<std::size_t>& inputs, std::size_t result, std::size_t aligned,
       std::uint64_t constants)
      : name_(std::move(name)), result_(result), aligned_(aligned), constants_(constants), tensors_(kScratch + 1) {
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      tensors_[k] = Tensor(inputs[k], aligned_of(k) % kAligned);
      bytes_of("x" + name_ + "_" + std::to_string(k), tensors_[k].data(), inputs[k]);
    }
    tensors_[kResult] = Tensor(result, aligned % kAligned);
  }

  // The parameters of an entry point, of file p<name>_<k>. The result is all kUnwritten, scratch is no zeros.
  template <typename Params>
  Params parameters(int k, std::size_t scratch) {
    static_assert(std::is_trivially_copyable<Params>::value, "parameters are copied to the GPU");
    tensors_[kResult].reset();
    tensors_[kScratch] = Tensor(scratch);
    for (std::size_t n = 0; n < scratch / sizeof(float); ++n) {
      reinterpret_cast<float*>(tensors_[kScratch].data())[n] = 77.0f;
    }
    unsigned char bytes[sizeof(Params)];
    bytes_of("p" + name_ + "_" + std::to_string(k), bytes, sizeof(bytes));
    for (std::size_t at = 0; at + 8 <= sizeof(bytes); at += 8) {
      std::uint64_t word;
      std::memcpy(&word, bytes + at, 8);
      const std::uint64_t tensor = (word >> kTensorBits) - kTag;
      if (tensor > kScratch) continue;  // also of no address
      const std::uint64_t from_first = (word & ((1ull << kTensorBits) - 1)) - aligned_of(tensor);
      word = reinterpret_cast<std::uint64_t>(tensors_[tensor].data()) + from_first;
      std::memcpy(bytes + at, &word, 8);
    }
    Params params;
    std::memcpy(&params, bytes, sizeof(bytes));
    return params;
  }

  // Writes the result to file y<name>_<k>. Exits where something beside it was written.
  void keep(int k) {
    if (!tensors_[kResult].only_inside_is_written() || !tensors_[kScratch].only_inside_is_written()) std::exit(3);
    std::FILE* file = std::fopen(("y" + name_ + "_" + std::to_string(k)).c_str(), "wb");
    if (file == nullptr || std::fwrite(tensors_[kResult].data(), 1, result_, file) != result_) std::exit(2);
    if (std::fclose(file) != 0) std::exit(2);
  }

 private:
  std::size_t aligned_of(std::uint64_t tensor) const { return (constants_ >> tensor & 1) != 0 ? kAligned : aligned_; }

  std::string name_;
  std::size_t result_, aligned_;
  std::uint64_t constants_;
  std::vector<Tensor> tensors_;
};

}  // namespace emulation
