#include "cpu/blocks/peephole.h"

#include <cstring>

namespace onnxopt {
namespace {

// Looks at the instructions that define a value's operands.
class Matcher {
 public:
  explicit Matcher(const Program& program) : program_(program) {}

  // The instruction that defines value `id`, if it is `op`; nullptr for an input or another op.
  const Instruction* Defined(std::uint32_t id, Op op) const {
    if (id < program_.leaves()) return nullptr;
    const Instruction& i = program_.code[id - program_.leaves()];
    return i.op == op ? &i : nullptr;
  }

  bool IsOne(std::uint32_t id) const {
    const Instruction* i = Defined(id, Op::kConst);
    if (i == nullptr) return false;
    if (i->dtype == Dtype::kFloat32) return Value<float>(*i) == 1.0F;
    return i->dtype == Dtype::kFloat64 && Value<double>(*i) == 1.0;
  }

  // Whether `i` is 1 / (exp(-x) + 1); if so, sets *x.
  bool IsSigmoid(const Instruction& i, std::uint32_t* x) const {
    if (i.op != Op::kDiv || !IsOne(i.args[0])) return false;
    const Instruction* sum = Defined(i.args[1], Op::kAdd);
    if (sum == nullptr || !(IsOne(sum->args[0]) || IsOne(sum->args[1]))) return false;
    const Instruction* exp = Defined(sum->args[IsOne(sum->args[0]) ? 1 : 0], Op::kExp);
    const Instruction* neg = exp == nullptr ? nullptr : Defined(exp->args[0], Op::kNeg);
    if (neg == nullptr) return false;
    *x = neg->args[0];
    return true;
  }

 private:
  template <typename T>
  static T Value(const Instruction& i) {
    T value;
    std::memcpy(&value, i.value.data(), sizeof(value));
    return value;
  }

  const Program& program_;
};

}  // namespace

Program Peephole(const Program& program) {
  Program fused = program;
  const Matcher matcher(program);
  for (Instruction& i : fused.code) {
    std::uint32_t x = 0;
    if (!matcher.IsSigmoid(i, &x)) continue;
    i.op = Op::kSigmoid;
    i.args = {x};
  }
  for (std::size_t k = 0; k < fused.outputs.size(); ++k) {
    const Instruction* narrow = matcher.Defined(fused.results[k], Op::kNarrow);
    if (narrow != nullptr && narrow->storage == fused.outputs[k]) fused.results[k] = narrow->args[0];
  }
  return fused;
}

}  // namespace onnxopt
