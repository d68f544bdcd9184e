// A program as steps over blocks, for one way its inputs lie over the domain.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/evaluate/evaluator.h"
#include "program/programs/pointwise.h"

namespace onnxopt {

// How an input's elements lie in memory over one block.
enum class Lie : std::uint8_t {
  kOne,        // one element for the whole domain
  kFlat,       // a run that begins at the domain index
  kDense,      // a run that begins at the offset of the block's first element
  kCell,       // one element for the block, at that offset
  kPeriod,     // scattered, but the same elements for every block: gathered once
  kGather,     // scattered: gathered for every block
  kCondition,  // no element of an input, but whether a condition holds: evaluated for every block
};

// What a plan depends on besides its program.
struct PlanKey {
  Lie lie[kMaxInputs] = {};
  std::uint64_t written = 0;  // bit k: output k is written
  std::uint32_t period = 1;   // every block's length but the last's is a multiple of it
  bool finds_zeros = false;   // tells where integers are divided by zero

  bool operator==(const PlanKey& other) const;
};

// An entry of the table that steps take their operands from.
using Place = std::uint32_t;

constexpr Place kNoPlace = ~Place{0};

struct Step {
  StepFunction run;
  Place out;
  Place a;
  Place b;
  Place c;
  bool once;  // on one element, not on the block
};

// Memory that a place stands for: `bytes` an element of the block (or once) at `offset` of the arena.
struct Slot {
  Place place;
  std::uint32_t offset;  // in units of bytes an element for whole slots, of bytes for cells
};

struct Plan {
  std::uint32_t block;              // longest block, in elements
  std::uint32_t places;             // entries of the table
  std::size_t arena;                // bytes of scratch memory, for one thread
  Place first_raw_input;            // where storage elements of leaf 0 lie; the others follow
  Place first_output;               // likewise for outputs
  Place zero_divisor;               // of a byte that becomes 1 where an integer is divided by zero, or kNoPlace
  std::vector<Slot> slots;          // offsets in bytes
  std::vector<Slot> constants;      // offset: the instruction whose value lies there
  std::vector<std::uint32_t> used;  // leaves that matter
  std::vector<Step> prologue;       // once a task
  std::vector<Step> body;           // for every block
};

Plan MakePlan(const Program& program, const PlanKey& key, const Evaluator& evaluator);

}  // namespace onnxopt
