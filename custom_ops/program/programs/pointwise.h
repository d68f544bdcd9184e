// A pointwise kernel's meaning as straight-line code over scalar primitives: the C++ side of
// onnxopt/program/pointwise.py.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "program/dtype.h"
#include "program/programs/indexing.h"
#include "program/programs/primitives.h"

namespace onnxopt {

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

// Ids: the leaves come first, instruction k defines id leaves() + k. Leaves are the inputs, or, with index operations,
// the accesses to them and then the conditions.
struct Program {
  std::vector<Dtype> inputs;
  std::vector<Dtype> outputs;
  std::vector<Instruction> code;
  std::vector<std::uint32_t> results;
  std::vector<std::vector<std::uint32_t>> depends;
  std::vector<std::uint32_t> ranks;
  std::optional<Indexing> index;

  std::size_t accesses() const { return index ? index->accesses.size() : inputs.size(); }
  std::size_t conditions() const { return index ? index->conditions.size() : 0; }
  std::size_t leaves() const { return accesses() + conditions(); }
  // Storage dtype of a leaf.
  Dtype leaf(std::size_t k) const {
    if (!index) return inputs[k];
    return k < index->accesses.size() ? inputs[index->accesses[k].input] : Dtype::kBool;
  }
  std::size_t ids() const { return leaves() + code.size(); }
  // Compute dtype of a value.
  Dtype dtype(std::size_t id) const { return id < leaves() ? Row(leaf(id)).compute : code[id - leaves()].dtype; }
  // Throws Error naming the first instruction or output that breaks a rule of program/pointwise.py.
  void Verify() const;
};

}  // namespace onnxopt
