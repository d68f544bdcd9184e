// The artifact's fatbin, loaded into the CUDA driver.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuda/launch/driver.h"

namespace onnxopt::cuda {

// One loaded fatbin. Context independent: the driver loads its code into a context when a kernel is first used there.
class Library {
 public:
  // `fatbin` must outlive the library; where it is empty, so is the library. Throws Error if the driver refuses it.
  Library(const Driver& driver, const std::vector<char>& fatbin);
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library();

  // Throws Error if the fatbin has no entry point of this name.
  DriverKernel Find(const std::string& symbol) const;

  // Whether the kernel `symbol` can run on at least one GPU of this machine. Where not, `problem` says why.
  bool RunsHere(const std::string& symbol, std::string* problem) const;

  // The least major compute capability of this machine's GPUs; 0 where there is none.
  int LeastMajor() const;

  // Whether there is machine code for GPUs of this architecture alone, 90 for sm_90a, which the driver loads on them.
  bool HasCodeForAlone(unsigned arch) const;

  const Driver& driver() const { return driver_; }

 private:
  struct Gpu {
    Device device;
    int major;  // of the compute capability
    int minor;
  };

  std::vector<Gpu> Gpus() const;
  Result LoadsOn(Device device, DriverKernel kernel) const;

  const Driver& driver_;
  const std::vector<char>& fatbin_;
  DriverLibrary library_ = nullptr;
};

}  // namespace onnxopt::cuda
