// Rowwise kernels in kernels.json.
#pragma once

#include <vector>

#include "kernel_file/kernel.h"
#include "program/programs/rowwise.h"
#include "support/json_reader.h"

namespace onnxopt {

// How a rowwise kernel goes through its rows, see cuda_kernels/rowwise/.
enum class Layout { kHeld, kRagged, kPiped, kRing, kLooped, kSplit, kSplitStrided, kStrided };

// Whether rows are cut into parts: one launch for every stage and one for what is stored.
inline bool IsSplit(Layout layout) { return layout == Layout::kSplit || layout == Layout::kSplitStrided; }

// What only entry points of kernels over rows have, see onnxopt/row_variants.py.
struct RowShape {
  Layout layout = Layout::kHeld;
  unsigned lanes = 0;
  std::uint64_t columns = 0;
  unsigned launch = 0;  // of a split variant: which of its launches; the others follow the first
};

// The fields of a rowwise program, which lie in `json` itself; verified.
RowProgram ReadRowProgram(const JsonReader& json);

Variant ReadRowwiseVariant(const JsonReader& json, const RowProgram& program);

// launches: of a split variant.
Variant ReadRowVariant(const JsonReader& json, const RowProgram& program, std::size_t launches);

// Throws Error where a split variant is not followed by all of its later passes.
void CheckPasses(const std::vector<Variant>& variants, std::size_t passes, const JsonReader& json);

void CheckEntryPoints(const JsonReader& json, bool has_fatbin, const RowProgram& program,
                      std::vector<Variant>* variants);

}  // namespace onnxopt
