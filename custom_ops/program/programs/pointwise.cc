#include "program/programs/pointwise.h"

#include <algorithm>
#include <vector>

#include "program/shape.h"
#include "support/error.h"

namespace onnxopt {
namespace {

constexpr Primitive kRows[] = {
#define ONNXOPT_ROW(enumerator, name, arity, operands, predicate, cost) {name, arity, operands, predicate, cost},
    ONNXOPT_PRIMITIVES(ONNXOPT_ROW) ONNXOPT_FUSED(ONNXOPT_ROW)
#undef ONNXOPT_ROW
};

constexpr std::size_t kPrimitives = static_cast<std::size_t>(Op::kSigmoid);  // the fused ones come after them

unsigned KindBit(Dtype dtype) { return 1U << static_cast<unsigned>(Row(dtype).kind); }

std::string Name(Dtype dtype) { return std::string(Row(dtype).name); }

// Empty where instruction `k` keeps the rules.
std::string Problem(const Program& program, std::size_t k) {
  const Instruction& i = program.code[k];
  const Primitive& row = Row(i.op);
  if (i.args.size() != row.arity) {
    return "takes " + std::to_string(row.arity) + " operands, has " + std::to_string(i.args.size());
  }
  for (const std::uint32_t a : i.args) {
    if (a >= program.leaves() + k) return "uses value " + std::to_string(a) + ", which is not defined before it";
  }
  if (!IsCompute(i.dtype)) return "returns " + Name(i.dtype) + ", which is not a compute dtype";
  if (i.op == Op::kConst) return "";
  const std::size_t first = i.op == Op::kSelect ? 1 : 0;
  if (i.op == Op::kSelect && program.dtype(i.args[0]) != Dtype::kBool) return "its condition is not bool";
  const Dtype operand = program.dtype(i.args[first]);
  for (std::size_t a = first; a < i.args.size(); ++a) {
    const Dtype dtype = program.dtype(i.args[a]);
    if (dtype != operand) return "operands cannot be " + Name(operand) + " and " + Name(dtype);
  }
  if ((row.operands & KindBit(operand)) == 0) return "operands cannot be " + Name(operand);
  if (i.op == Op::kNarrow && (operand != Dtype::kFloat32 || Row(i.storage).compute != Dtype::kFloat32)) {
    return "rounds float32 to a dtype that computes in float32, not " + Name(operand) + " to " + Name(i.storage);
  }
  const Dtype expected = row.predicate ? Dtype::kBool : i.op == Op::kCast ? i.dtype : operand;
  if (i.dtype != expected) return "returns " + Name(expected) + ", not " + Name(i.dtype);
  return "";
}

// Whether a value depends on what is looked up.
bool DependsOnLookup(const Program& program, std::uint32_t value) {
  std::vector<bool> depends(program.ids(), false);
  for (std::size_t k = 0; k < program.accesses(); ++k) depends[k] = program.index->accesses[k].lookup.has_value();
  for (std::size_t k = 0; k < program.code.size(); ++k) {
    const std::vector<std::uint32_t>& args = program.code[k].args;
    depends[program.leaves() + k] = std::any_of(args.begin(), args.end(), [&](std::uint32_t a) { return depends[a]; });
  }
  return depends[value];
}

void VerifyIndices(const Program& program) {
  for (const InputAccess& access : program.index->accesses) {
    if (!access.lookup) continue;
    const std::uint32_t value = access.lookup->index;
    const bool is_index =
        value < program.ids() && (program.dtype(value) == Dtype::kInt32 || program.dtype(value) == Dtype::kInt64);
    if (!is_index) throw Error("a lookup: value " + std::to_string(value) + " is no int32 or int64");
    if (DependsOnLookup(program, value)) {
      throw Error("a lookup: value " + std::to_string(value) + " depends on what is looked up");
    }
  }
}

}  // namespace

const Primitive& Row(Op op) { return kRows[static_cast<std::size_t>(op)]; }

bool ParseOp(std::string_view name, Op* op) {
  for (std::size_t k = 0; k < kPrimitives; ++k) {
    if (kRows[k].name == name) {
      *op = static_cast<Op>(k);
      return true;
    }
  }
  return false;
}

void Program::Verify() const {
  if (inputs.empty() || inputs.size() > kMaxInputs) {
    throw Error("has " + std::to_string(inputs.size()) + " inputs, not 1 to " + std::to_string(kMaxInputs));
  }
  if (outputs.empty() || outputs.size() > kMaxOutputs) {
    throw Error("has " + std::to_string(outputs.size()) + " outputs, not 1 to " + std::to_string(kMaxOutputs));
  }
  if (index) index->Verify(inputs.size(), outputs.size());
  if (leaves() > kMaxInputs) throw Error("reads its inputs in " + std::to_string(leaves()) + " ways, too many");
  for (std::size_t k = 0; k < code.size(); ++k) {
    const std::string problem = Problem(*this, k);
    if (problem.empty()) continue;
    throw Error("instruction " + std::to_string(k) + " (" + std::string(Row(code[k].op).name) + "): " + problem);
  }
  if (index) VerifyIndices(*this);
  if (results.size() != outputs.size() || depends.size() != outputs.size() || ranks.size() != outputs.size()) {
    throw Error("outputs, results, depends and ranks differ in length");
  }
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    const std::string output = "output " + std::to_string(k) + ": ";
    if (results[k] >= ids() || dtype(results[k]) != Row(outputs[k]).compute) {
      throw Error(output + Name(outputs[k]) + " cannot store value " + std::to_string(results[k]));
    }
    if (depends[k].empty() && !index) throw Error(output + "depends on no input");
    for (const std::uint32_t d : depends[k]) {
      if (d >= inputs.size()) throw Error(output + "depends on input " + std::to_string(d) + ", which is not there");
    }
    if (ranks[k] > kMaxRank) throw Error(output + "rank " + std::to_string(ranks[k]) + " is too high");
  }
}

}  // namespace onnxopt
