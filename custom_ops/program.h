// A pointwise kernel's meaning as straight-line code over scalar primitives: the C++ side of onnxopt/program.py.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dtype.h"
#include "primitives.h"

namespace onnxopt {

// More would not fit a kernel's parameter block, and keeps every per-call array on the stack.
constexpr std::size_t kMaxInputs = 32;
constexpr std::size_t kMaxOutputs = 32;

struct Primitive {
  std::string_view name;
  unsigned arity;
  unsigned operands;  // kOn... bits
  bool predicate;
  unsigned cost;  // in float32 instructions
};

const Primitive& Row(Op op);

// False where no primitive has this name.
bool ParseOp(std::string_view name, Op* op);

// value: the constant of `const`, in the bytes of `dtype`. storage: the dtype that `narrow` rounds to.
struct Instruction {
  Op op = Op::kConst;
  Dtype dtype = Dtype::kFloat32;
  Dtype storage = Dtype::kFloat32;
  std::vector<std::uint32_t> args;
  alignas(8) std::array<unsigned char, 8> value{};
};

// Ids: the inputs come first, instruction k defines id inputs.size() + k.
struct Program {
  std::vector<Dtype> inputs;
  std::vector<Dtype> outputs;
  std::vector<Instruction> code;
  std::vector<std::uint32_t> results;
  std::vector<std::vector<std::uint32_t>> depends;
  std::vector<std::uint32_t> ranks;

  std::size_t ids() const { return inputs.size() + code.size(); }
  // Compute dtype of a value.
  Dtype dtype(std::size_t id) const {
    return id < inputs.size() ? Row(inputs[id]).compute : code[id - inputs.size()].dtype;
  }
  // Throws Error naming the first instruction or output that breaks a rule of program.py.
  void Verify() const;
};

}  // namespace onnxopt
