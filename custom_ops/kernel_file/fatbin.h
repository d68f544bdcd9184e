// Which GPU architectures a fatbin has code for.
#pragma once

#include <vector>

namespace onnxopt::cuda {

// One piece of code. arch: 10 * major + minor, 90 for sm_90. ptx: text that the driver compiles, not a cubin. specific:
// for this architecture alone, as sm_90a.
struct Image {
  unsigned arch;
  bool ptx;
  bool specific;

  // Whether a GPU of compute capability major.minor runs it, leaving aside whether its driver knows the PTX version.
  bool RunsOn(unsigned major, unsigned minor) const {
    const unsigned gpu = 10 * major + minor;
    if (specific) return gpu == arch;
    return ptx ? gpu >= arch : gpu >= arch && gpu / 10 == arch / 10;
  }
};

// The images of a fatbin; empty where it does not have the container format known here.
std::vector<Image> Images(const std::vector<char>& fatbin);

// Whether there is machine code for this architecture alone, 90 for sm_90a.
bool HasMachineCodeForAlone(const std::vector<char>& fatbin, unsigned arch);

}  // namespace onnxopt::cuda
