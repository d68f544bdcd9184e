// The entry points of one kernel, loaded, and launching them on ONNX Runtime's stream.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cuda/launch/library.h"
#include "kernel_file/kernel.h"
#include "kernel_file/measured/launch_choices.h"
#include "support/ort.h"

namespace onnxopt::cuda {

// Of the GPU whose context is current.
struct DeviceTraits {
  int major;
  unsigned multiprocessors;
  unsigned shared;  // bytes of shared memory that a block can have
  std::string name;
};

// What a call runs over, by which measured choices are told apart. columns: of a row, 0 where there are no rows.
struct CallSize {
  std::uint64_t elements;
  std::uint64_t columns;

  std::string text() const;
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

  // The variant to launch for a call: the one measured to be fastest on this GPU, where one is known and fits, else
  // `rule`. Where choices are being measured, all that fit are run, each of which writes the same outputs: no output of
  // a fused node lies where an input does.
  template <typename Fits, typename Launch>
  std::size_t Choose(const CallSize& size, std::size_t rule, Stream stream, Fits&& fits, Launch&& launch) const {
    return choices_.none() ? rule : Measured(size, rule, stream, fits, launch);
  }

  // Clusters (of one block: blocks) of a variant that the GPU runs at once, at least 1. Asks the driver once per GPU,
  // and has it give the variant the shared memory and the cluster that it needs: before a large cluster's launch.
  unsigned Resident(std::size_t variant) const;

  // params: the variant's parameter block.
  void Launch(std::size_t variant, unsigned blocks, unsigned char* params, Stream stream) const;

 private:
  using Fits = std::function<bool(std::size_t)>;
  using LaunchOf = std::function<void(std::size_t)>;

  std::size_t Measured(const CallSize& size, std::size_t rule, Stream stream, const Fits& fits,
                       const LaunchOf& launch) const;
  bool Measurable(Stream stream) const;
  std::size_t Measure(const CallSize& size, std::size_t rule, Stream stream, const Fits& fits,
                      const LaunchOf& launch) const;
  std::size_t Find(const std::string& symbol) const;
  unsigned AskResident(std::size_t variant, Device device) const;

  const Kernel& kernel_;
  const Driver& driver_;
  LaunchChoices& choices_;
  std::vector<DriverKernel> variants_;  // as kernel_.variants
  mutable std::mutex choices_mutex_;    // of what follows; held while entry points are measured
  mutable std::map<std::tuple<std::string, std::uint64_t, std::uint64_t>, std::size_t> chosen_;  // by GPU and size
  mutable std::mutex resident_mutex_;                                                            // of what follows
  mutable std::map<std::pair<Device, std::size_t>, unsigned> resident_;
};

}  // namespace onnxopt::cuda
