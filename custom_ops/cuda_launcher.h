// The entry points of one kernel, loaded, and launching them on ONNX Runtime's stream.
#pragma once

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda_library.h"
#include "kernel_file.h"
#include "ort.h"

namespace onnxopt::cuda {

// Of the GPU whose context is current.
struct DeviceTraits {
  int major;
  unsigned multiprocessors;
  unsigned shared;  // bytes of shared memory that a block can have
};

class Launcher {
 public:
  // Loads every variant into the current context, if there is one: under CUDA graph capture it would be too late.
  // Throws Error if one does not load.
  Launcher(const Kernel& kernel, const Library& library);

  // The stream to launch on; its context is current afterwards.
  Stream Enter(OrtKernelContext* context) const;

  // Asks the driver once per GPU.
  const DeviceTraits& device() const;

  // Clusters (of one block: blocks) of a variant that the GPU runs at once, at least 1. Asks the driver once per GPU,
  // and has it give the variant the shared memory that it needs: to be called before such a variant is launched.
  unsigned Resident(std::size_t variant) const;

  // params: the variant's parameter block.
  void Launch(std::size_t variant, unsigned blocks, unsigned char* params, Stream stream) const;

 private:
  unsigned AskResident(std::size_t variant, Device device) const;

  const Kernel& kernel_;
  const Driver& driver_;
  std::vector<DriverKernel> variants_;  // as kernel_.variants
  mutable std::mutex mutex_;
  mutable std::map<std::pair<Device, std::size_t>, unsigned> resident_;
};

}  // namespace onnxopt::cuda
