// Shapes that the graph states.
#pragma once

#include <optional>
#include <vector>

#include "kernel_file/kernel.h"
#include "program/shape.h"
#include "support/ort.h"

namespace onnxopt::cuda {

// The shape of a node's input where the graph states it as numbers.
std::optional<Shape> StatedShape(const OrtKernelInfo* info, std::size_t input);

// Shapes of all inputs of a node that are known before it runs: those that the graph states, else those that most calls
// have.
class StatedShapes {
 public:
  StatedShapes(const Kernel& kernel, const OrtKernelInfo* info);

  const std::vector<std::vector<Shape>>& all() const { return all_; }
  // Whether there will be no others.
  bool alone() const { return alone_; }

 private:
  std::vector<std::vector<Shape>> all_;
  bool alone_ = false;
};

}  // namespace onnxopt::cuda
