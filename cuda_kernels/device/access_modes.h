// Access modes: how the elements that an access reads lie over a vector of the domain, and what a condition does there.
//
// An entry point has one letter for each access, then one for each condition. onnxopt/kinds/pointwise/access_modes.py
// has the same names with what they mean, and chooses them; the host checks that a call's shapes fit them.
#pragma once

namespace onnxopt {
namespace access_mode {

constexpr char kFlat = 'F';
constexpr char kScalar = 'S';
constexpr char kRun = 'R';
constexpr char kCell = 'C';
constexpr char kRun2 = 'T';
constexpr char kCell2 = 'U';
constexpr char kRunAny = 'V';
constexpr char kCellAny = 'W';
constexpr char kInterleaved = 'I';
constexpr char kSplitRun = 'r';
constexpr char kSplitCell = 'c';
constexpr char kSplit2 = 't';
constexpr char kSplitAny = 'G';
constexpr char kGuarded = 'g';
constexpr char kColumn = 'X';
constexpr char kColumn8 = 'Y';
constexpr char kColumn16 = 'Z';
constexpr char kColumnShifted = 'z';
constexpr char kUniform = 'P';
constexpr char kPerElement = 'p';
constexpr char kAny = '*';
constexpr char kByColumn = 'K';
constexpr char kDense = 'D';

}  // namespace access_mode
}  // namespace onnxopt
