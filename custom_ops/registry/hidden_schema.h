// The op that keeps ONNX Runtime from finding a schema for a function's name.
#pragma once

#include <string>

#include "support/ort.h"

namespace onnxopt {

// ONNX Runtime takes a node for a call of a model's function only where no schema answers to the node's name. Then
// every provider claims the calls that it has a kernel for, and ONNX Runtime inlines the others before it optimizes the
// graph. A custom op brings a schema, and all ops of a name share one, whose version is that of the op that was added
// first. This op is added first. Its version is 2, and its provider does not exist. A model imports version 1 of the
// domain, so it finds no schema; kernels are looked up by their own op's version, which is 1.
//
// ONNX Runtime refers to it as long as a session lives, so it lives as long as the process, and so does `name`.
class HiddenSchema final : public OrtCustomOp {
 public:
  explicit HiddenSchema(const std::string& name);

  const std::string& name() const { return name_; }

 private:
  const std::string& name_;
};

// Makes an op declare neither inputs nor outputs, which ops that share a schema have to agree on. What it is called,
// its provider, its first version and what makes its kernels stay unset.
void DeclareNothing(OrtCustomOp* op);

}  // namespace onnxopt
