// How the product of an expert's weight and its rows is divided among warps, and where it lies in shared memory.
#pragma once

#include "device/dtypes.cuh"

namespace onnxopt {

// T: storage dtype. A block has kRows rows and kColumns columns of the weight, and brings kDepthBytes of each row to
// shared memory together, into kStages places. A warp has kRowTiles tiles of 8 rows, and kColumnTiles of 16 columns in
// each half of the columns: in the second one lies a gate's other factor.
//
// Rows in shared memory are an odd number of 16 bytes long: matrices of 8 rows are read without conflicts.
template <typename T_, int kRows_, int kColumns_, int kWarps_, int kDepthBytes, int kStages_, int kColumnTiles_ = 1>
struct ExpertsTile {
  using T = T_;
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  static constexpr int kStages = kStages_;
  static constexpr int kThreads = 32 * kWarps_;
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr int kHalf = kColumns / 2;
  static constexpr int kColumnTiles = kColumnTiles_;
  static constexpr int kWarpsOfColumns = kColumns / (32 * kColumnTiles);
  static constexpr int kWarpsOfRows = kWarps_ / kWarpsOfColumns;
  static constexpr int kRowTiles = kRows / kWarpsOfRows / 8;
  static constexpr int kDepth = kDepthBytes / sizeof(T);
  static constexpr int kPitch = kDepth + kVector;          // elements from a row to the next
  static constexpr int kWeightPitch = kColumns + kVector;  // from a row of the weight to the next
  static constexpr int kWeightElements = kDepth * kWeightPitch;
  static constexpr int kStageElements = kWeightElements + kRows * kPitch;
  static constexpr int kSharedBytes = kStages * kStageElements * static_cast<int>(sizeof(T));
  static_assert(kWarpsOfColumns * kWarpsOfRows == kWarps_ && kRowTiles % 2 == 0 && kDepth % 16 == 0,
                "as the host chose");
  static_assert(kStages >= 2, "a stage is filled while another is read");
};

}  // namespace onnxopt
