// What a block of an attention works on, and where it lies in shared memory.
#pragma once

namespace onnxopt {

// kWarps: of 16 queries each. kKeys: that are brought to shared memory together. kStages: places for them. kAccess:
// bytes that every row of q, k, v and the result is aligned to, 2, 4, 8 or 16.
//
// Rows in shared memory are an odd number of 16 bytes long: matrices of 8 rows are read without conflicts.
template <int kWidthOf, int kValuesOf, int kWarpsOf, int kKeysOf, int kStagesOf, int kAccessOf>
struct FlashTile {
  static constexpr int kWidth = kWidthOf;    // elements of a head of q and k
  static constexpr int kValues = kValuesOf;  // of v
  static constexpr int kWarps = kWarpsOf;
  static constexpr int kKeys = kKeysOf;
  static constexpr int kStages = kStagesOf;
  static constexpr int kAccess = kAccessOf;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kQueries = 16 * kWarps;
  static constexpr int kEights = (kWidth + 7) / 8;  // of q k^T's depth
  static constexpr int kSteps = kEights / 2;
  static constexpr bool kOdd = kEights % 2 != 0;  // half a step is left
  static constexpr int kTiles = (kValues + 7) / 8;
  static constexpr int kKeyTiles = kKeys / 8;
  static constexpr int kPitch = 8 * (kEights | 1);  // elements from a row to the next
  static constexpr int kValuePitch = 8 * (kTiles | 1);
  static constexpr int kQueryPitch = kPitch > kValuePitch ? kPitch : kValuePitch;  // results lie there in the end
  static constexpr int kQueryBytes = kQueries * kQueryPitch * 2;
  static constexpr int kKeyBytes = kKeys * kPitch * 2;
  static constexpr int kStageBytes = kKeyBytes + kKeys * kValuePitch * 2;
  static constexpr bool kHoldsQueries = kSteps <= 8;  // in registers
  static_assert(kKeys % 16 == 0 && (kStages == 1 || kStages == 2), "as the host chose");
  static_assert(2 * kWidth % kAccess == 0 && 2 * kValues % kAccess == 0, "rows are whole accesses");
};

}  // namespace onnxopt
