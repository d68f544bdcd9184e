#include "program/programs/rowwise.h"

#include "program/shape.h"
#include "support/error.h"

namespace onnxopt {
namespace {

std::string At(std::size_t k) { return "[" + std::to_string(k) + "]"; }

// Follows the slots while pieces are checked in the order that they run in.
class Verifier {
 public:
  explicit Verifier(const RowProgram& program) : program_(program), slots_(program.Leaves()) {
    slots_.push_back(Dtype::kFloat32);
    slots_.push_back(Dtype::kFloat64);
    slots_.push_back(Dtype::kInt64);
  }

  void Run() {
    for (std::size_t k = 0; k < program_.stages.size(); ++k) CheckStage(k);
    CheckOutput(program_.output, false);
    CheckOutput(program_.row_output, true);
  }

 private:
  void CheckStage(std::size_t k) {
    const Stage& stage = program_.stages[k];
    const std::string where = "stages" + At(k);
    if (stage.reductions.size() != stage.element.program.outputs.size()) {
      throw Error(where + ": reductions and values differ in number");
    }
    CheckPiece(stage.element, where + ".element", false);
    Append(stage.element, where);
    if (!stage.row) return;
    CheckPiece(*stage.row, where + ".row", true);
    Append(*stage.row, where);
  }

  void Append(const Piece& piece, const std::string& where) {
    for (const Dtype dtype : piece.program.outputs) {
      if (!IsCompute(dtype)) throw Error(where + ": a row value has a dtype that is not computed in");
      slots_.push_back(dtype);
    }
  }

  void CheckPiece(const Piece& piece, const std::string& where, bool rows_only) const {
    if (piece.reads.size() != piece.program.inputs.size()) throw Error(where + ": reads and inputs differ in number");
    for (std::size_t k = 0; k < piece.reads.size(); ++k) {
      const std::size_t slot = piece.reads[k];
      if (slot >= slots_.size() || slots_[slot] != piece.program.inputs[k]) {
        throw Error(where + ": slot " + std::to_string(slot) + " does not hold what is read");
      }
      if (rows_only && slot < program_.leaves() && !program_.operands[slot].row) {
        throw Error(where + ": input " + std::to_string(slot) + " has more than one element a row");
      }
      if (rows_only && slot == program_.leaves() + kPositionSlot) {
        throw Error(where + ": an element's position is not the row's");
      }
    }
  }

  void CheckOutput(const std::optional<Piece>& piece, bool rows) const {
    const std::string where = rows ? "row_output" : "output";
    std::vector<Dtype> wanted;
    for (const std::size_t k : program_.Stored(rows)) wanted.push_back(program_.outputs[k]);
    if (piece ? piece->program.outputs != wanted : !wanted.empty()) throw Error(where + ": not what outputs store");
    if (piece) CheckPiece(*piece, where, rows);
  }

  const RowProgram& program_;
  std::vector<Dtype> slots_;
};

}  // namespace

bool ParseReduction(std::string_view name, Reduction* reduction) {
  constexpr std::string_view kNames[] = {"sum", "prod", "max", "min"};
  for (std::size_t k = 0; k < 4; ++k) {
    if (name != kNames[k]) continue;
    *reduction = static_cast<Reduction>(k);
    return true;
  }
  return false;
}

bool ParseForm(std::string_view name, Form* form) {
  constexpr std::string_view kNames[] = {"element", "row", "squeezed"};
  for (std::size_t k = 0; k < 3; ++k) {
    if (name != kNames[k]) continue;
    *form = static_cast<Form>(k);
    return true;
  }
  return false;
}

std::vector<Dtype> RowProgram::Leaves() const {
  if (!index) return inputs;
  std::vector<Dtype> leaves;
  for (const InputAccess& access : index->accesses) leaves.push_back(inputs[access.input]);
  leaves.resize(leaves.size() + index->conditions.size(), Dtype::kBool);
  return leaves;
}

std::vector<Dtype> RowProgram::Slots() const {
  std::vector<Dtype> slots = Leaves();
  slots.push_back(Dtype::kFloat32);
  slots.push_back(Dtype::kFloat64);
  slots.push_back(Dtype::kInt64);
  for (const Stage& stage : stages) {
    for (const Dtype dtype : stage.element.program.outputs) slots.push_back(dtype);
    if (!stage.row) continue;
    for (const Dtype dtype : stage.row->program.outputs) slots.push_back(dtype);
  }
  return slots;
}

std::vector<std::size_t> RowProgram::Stored(bool rows) const {
  std::vector<std::size_t> matching;
  for (std::size_t k = 0; k < results.size(); ++k) {
    if ((results[k].form != Form::kElement) == rows) matching.push_back(k);
  }
  return matching;
}

void RowProgram::Verify() const {
  if (index) {
    index->Verify(inputs.size(), outputs.size());
    if (index->LooksUp()) throw Error("index: a rowwise kernel looks nothing up");
    index->VerifyExtents(domain, "the domain");
  }
  if (domain.size() != (index ? 3 : 0)) throw Error("domain: not three extents, or no index");
  if (inputs.empty() || inputs.size() > kMaxInputs || leaves() > kMaxInputs || leaves() != operands.size()) {
    throw Error("inputs: none, too many, or not as many as operands");
  }
  if (outputs.empty() || outputs.size() > kMaxOutputs || outputs.size() != results.size()) {
    throw Error("outputs: none, too many, or not as many as results");
  }
  if (stages.empty()) throw Error("stages: nothing is reduced");
  if (views.empty() || views.size() > 2) throw Error("views: neither one nor two");
  std::size_t bases = 0;
  for (const View& view : views) {
    bases += view.target.empty() ? 1 : 0;
    if (view.rank < 1 || view.rank > kMaxRank) throw Error("views: a rank is 0 or too high");
    if (!view.target.empty() && view.target.size() != view.rank) throw Error("views: a target has another rank");
  }
  if (bases != 1) throw Error("views: not one view that inputs are broadcast into");
  if (first >= last || last > views[0].rank) throw Error("axes: not axes of view 0");
  for (std::size_t k = 0; k < operands.size(); ++k) {
    if (operands[k].view >= views.size() || operands[k].trailing >= kMaxRank) throw Error("operands: no such view");
    if (operands[k].row && k >= accesses()) throw Error("operands: a condition is not one of a row");
  }
  for (const Result& result : results) {
    if (result.view >= views.size() || (result.form != Form::kElement && result.view != 0)) {
      throw Error("results: no such view");
    }
  }
  Verifier(*this).Run();
}

}  // namespace onnxopt
