// What a block of an attention works on, and where it lies in shared memory.
#pragma once

namespace onnxopt {

// kWarps: of 16 queries of each band. kKeys: that are brought to shared memory together. kStages: places for them.
// kAccess: bytes that every row of q, k, v and the result is aligned to, 2, 4, 8 or 16. kBands: of 16 queries of every
// warp, for which it reads keys and values once. kRun: neighbouring keys whose scores a lane has, 2, 4 or 8. With more
// than 2, keys lie in the order of `row_of` in shared memory, and a lane loads the bias of a run at once. kBytes: of an
// element. kExact: of float32, products keep what TF32 rounds off.
//
// Rows in shared memory are an odd number of 16 bytes long: matrices of 8 rows are read without conflicts.
template <int kWidthOf, int kValuesOf, int kWarpsOf, int kKeysOf, int kStagesOf, int kAccessOf, int kBandsOf = 1,
          int kRunOf = 2, int kBytesOf = 2, bool kExactOf = false>
struct FlashTile {
  // Elements from a row of some times 8 elements to the next.
  __device__ static constexpr int pitch(int eights) { return (eights * kBytesOf / 2 | 1) * 16 / kBytesOf; }

  static constexpr int kWidth = kWidthOf;    // elements of a head of q and k
  static constexpr int kValues = kValuesOf;  // of v
  static constexpr int kWarps = kWarpsOf;
  static constexpr int kKeys = kKeysOf;
  static constexpr int kStages = kStagesOf;
  static constexpr int kAccess = kAccessOf;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBands = kBandsOf;
  static constexpr int kBandQueries = 16 * kWarps;
  static constexpr int kQueries = kBands * kBandQueries;
  static constexpr int kBytes = kBytesOf;
  static constexpr bool kExact = kExactOf;
  static constexpr int kEights = (kWidth + 7) / 8;               // of q k^T's depth
  static constexpr int kSteps = kEights * kBytes / 4;            // of 32 bytes
  static constexpr bool kOdd = kBytes == 2 && kEights % 2 != 0;  // half a step is left
  static constexpr int kTiles = (kValues + 7) / 8;
  static constexpr int kKeyTiles = kKeys / 8;
  static constexpr int kPitch = pitch(kEights);  // elements from a row to the next
  static constexpr int kValuePitch = pitch(kTiles);
  static constexpr int kQueryPitch = kPitch > kValuePitch ? kPitch : kValuePitch;  // results lie there in the end
  static constexpr int kBandBytes = kBandQueries * kQueryPitch * kBytes;
  static constexpr int kQueryBytes = kBands * kBandBytes;
  static constexpr int kKeyBytes = kKeys * kPitch * kBytes;
  static constexpr int kStageBytes = kKeyBytes + kKeys * kValuePitch * kBytes;
  static constexpr bool kHoldsQueries = kBands * kSteps * (kExact ? 2 : 1) <= 8;  // in registers
  static constexpr int kRun = kRunOf;
  static_assert(kKeys % (4 * kRun) == 0 && kKeys % 16 == 0 && (kStages == 1 || kStages == 2), "as the host chose");
  static_assert(kBytes * kWidth % kAccess == 0 && kBytes * kValues % kAccess == 0, "rows are whole accesses");

  // Where a key of a tile lies: the row of a matrix whose scores the lane has that is to have the key's.
  __device__ static constexpr int row_of(int key) {
    if constexpr (kRun == 2) return key;
    return key / (4 * kRun) * (4 * kRun) + key % kRun / 2 * 8 + key % (4 * kRun) / kRun * 2 + key % 2;
  }
};

}  // namespace onnxopt
