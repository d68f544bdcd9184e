// A scan kernel's meaning: the C++ side of onnxopt/scan_program.py. Its inputs, outputs and rows are a RowProgram that
// reduces nothing, so that a call's grid of rows is found as that of a rowwise kernel.
#pragma once

#include "program/pointwise.h"

namespace onnxopt {

constexpr std::size_t kScanLaunches = 2;  // of a split variant: the parts' sums, and what is stored

// element: what is summed up, of the inputs. output: what is stored, of the inputs and then the running total.
struct Scan {
  bool exclusive = false;
  bool reverse = false;
  Program element;
  Program output;

  // Of the running totals.
  Dtype total() const { return element.outputs[0]; }
};

}  // namespace onnxopt
