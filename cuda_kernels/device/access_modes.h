// Access modes: how the elements that an access reads lie over a vector of the domain, and what a condition does there.
//
// An entry point has one letter for each access, then one for each condition. onnxopt/kinds/pointwise/access_modes.py
// has the same names with what they mean, and chooses them; the host checks that a call's shapes fit them.
#pragma once

namespace onnxopt {
namespace access_mode {

// Enumerators, not constexpr variables: NVRTC puts every variable into the module, used or not.
enum Mode : char {
  kFlat = 'F',
  kScalar = 'S',
  kRun = 'R',
  kCell = 'C',
  kRun2 = 'T',
  kCell2 = 'U',
  kRunAny = 'V',
  kCellAny = 'W',
  kInterleaved = 'I',
  kSplitRun = 'r',
  kSplitCell = 'c',
  kSplit2 = 't',
  kSplitAny = 'G',
  kGuarded = 'g',
  kColumn = 'X',
  kColumn8 = 'Y',
  kColumn16 = 'Z',
  kColumnShifted = 'z',
  kUniform = 'P',
  kPerElement = 'p',
  kAny = '*',
  kByColumn = 'K',
  kDense = 'D',
};

}  // namespace access_mode
}  // namespace onnxopt
