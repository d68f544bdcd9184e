// A rowwise kernel's meaning: the C++ side of onnxopt/program/rowwise.py, whose words and rules these are.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "program/programs/pointwise.h"

namespace onnxopt {

enum class Reduction : std::uint8_t { kSum, kProd, kMax, kMin };

// False where no reduction has this name.
bool ParseReduction(std::string_view name, Reduction* reduction);

// target: empty for the view that inputs are broadcast into, else how the other view is reshaped to this one.
struct View {
  std::size_t rank;
  std::vector<std::int64_t> target;
};

struct Operand {
  std::size_t view;
  std::size_t trailing;
  bool row;
};

enum class Form : std::uint8_t { kElement, kRow, kSqueezed };

bool ParseForm(std::string_view name, Form* form);

struct Result {
  Form form;
  std::size_t view;
};

// reads: slots. Leaves come first, then what is given (the row length as float32 and as float64, an
// element's position in its row as int64), then row values.
struct Piece {
  std::vector<std::uint32_t> reads;
  Program program;
};

struct Stage {
  Piece element;
  std::vector<Reduction> reductions;
  std::optional<Piece> row;
};

constexpr std::size_t kGivenSlots = 3;
constexpr std::size_t kPositionSlot = 2;  // of these

struct RowProgram {
  std::vector<Dtype> inputs;
  std::vector<Dtype> outputs;
  std::size_t first;
  std::size_t last;
  std::vector<View> views;
  std::vector<Operand> operands;
  std::vector<Result> results;
  std::vector<Stage> stages;
  std::optional<Piece> output;
  std::optional<Piece> row_output;
  std::optional<Indexing> index;
  std::vector<Extent> domain;  // outer, row and inner, where there is an index

  // As a Program's: the inputs, or the accesses to them and then the conditions.
  std::size_t accesses() const { return index ? index->accesses.size() : inputs.size(); }
  std::size_t conditions() const { return index ? index->conditions.size() : 0; }
  std::size_t leaves() const { return accesses() + conditions(); }
  // Storage dtypes of the leaves.
  std::vector<Dtype> Leaves() const;
  // The view that inputs are broadcast into.
  std::size_t base() const { return views[0].target.empty() ? 0 : 1; }
  // Of a split variant: one a stage, and one for what is stored.
  std::size_t launches() const { return stages.size() + 1; }
  // Dtype of every slot.
  std::vector<Dtype> Slots() const;
  // Outputs with one element for each of the domain, or one a row.
  std::vector<std::size_t> Stored(bool rows) const;
  // Throws Error naming the first field that breaks a rule of program/rowwise.py.
  void Verify() const;
};

}  // namespace onnxopt
