// A kernel as kernels.json describes it: what every kind has, and what its own kind has.
#pragma once

#include <any>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "program/dtype.h"
#include "program/shape.h"
#include "support/error.h"

namespace onnxopt {

constexpr unsigned kWarpThreads = 32;

// A value of a type that only one kind of kernels knows.
class OfKind {
 public:
  template <typename T>
  void Set(T value) {
    value_ = std::move(value);
  }

  // Throws Error where the value is not a T.
  template <typename T>
  const T& As() const {
    const T* const value = std::any_cast<T>(&value_);
    if (value == nullptr) throw Error("a kernel is not of the kind that it is run as");
    return *value;
  }

  template <typename T>
  bool Is() const {
    return std::any_cast<T>(&value_) != nullptr;
  }

 private:
  std::any value_;
};

// One entry point of a kernel.
struct Variant {
  std::string symbol;
  std::string modes;  // a letter an access and a condition, see device/access_modes.h
  unsigned index;     // 32 or 64
  unsigned vector;
  unsigned unroll;
  unsigned threads;
  bool waits = false;  // waits by itself for the kernel ahead of it in the stream
  unsigned cluster = 1;
  unsigned shared = 0;  // bytes of shared memory a block that are asked for at launch
  OfKind shape;         // what only entry points of its kind have; the struct stands beside the kind's reader
};

struct Kernel {
  std::string name;
  std::string kind;           // the name of a row in registry/generated/kinds.cc
  std::vector<Dtype> inputs;  // storage dtypes
  std::vector<Dtype> outputs;
  OfKind meaning;  // what it computes, a struct of program/
  std::vector<Variant> variants;
  bool cpu;  // the CPU kernel beats ONNX Runtime's own kernels
  // Shapes of all inputs that most calls have, where the graph does not state them.
  std::vector<std::vector<Shape>> usual;
};

}  // namespace onnxopt
