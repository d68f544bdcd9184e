// A scan kernel's meaning: the C++ side of onnxopt/program/scan.py.
#pragma once

#include "program/programs/rowwise.h"

namespace onnxopt {

constexpr std::size_t kScanLaunches = 2;  // of a split variant: the parts' sums, and what is stored

// rows: inputs, outputs and rows as those of a rowwise kernel that reduces nothing, so that a call's grid of rows is
// found in the same way. element: what is summed up, of the inputs. output: what is stored, of the inputs and then the
// running total.
struct Scan {
  RowProgram rows;
  bool exclusive = false;
  bool reverse = false;
  Program element;
  Program output;

  // Of the running totals.
  Dtype total() const { return element.outputs[0]; }
};

}  // namespace onnxopt
