#pragma once

// Written by custom_ops/generate.py from onnxopt/costs/data/*.json, which say where each number comes from.

#include <cstddef>
#include <cstdint>

namespace onnxopt::costs::convolution {

// plans: of cuDNN that tuning measures
constexpr std::size_t kTunedPlans = 16;
// plans: of cuDNN that a first run measures
constexpr std::size_t kFirstRunPlans = 6;
// plans: of cuDNN that are timed for a size that comes with its input
constexpr std::size_t kTimedPlans = 3;
// bytes: of workspace; a first run measures no plan that wants more
constexpr std::int64_t kFirstRunWorkspace = 33554432;
// share: of the outputs of tiles that are in the result, from which our kernel runs it where there are more tiles than
// multiprocessors
constexpr double kDenseFill = 0.7;

}  // namespace onnxopt::costs::convolution

namespace onnxopt::costs::cpu {

// ns: of work below which waking threads costs more than they save
constexpr double kSerialNanoseconds = 20000;
// ns: that a task of the thread pool takes at least
constexpr double kTaskNanoseconds = 10000;
// tasks: of one call
constexpr std::uint64_t kMaxTasks = 256;
// ns: of one float32 instruction of one thread
constexpr double kNanosecondsPerCost = 0.1;
// ns: of a byte that one thread reads or writes
constexpr double kNanosecondsPerByte = 0.08;
// ns: of an element that one thread sums up
constexpr double kNanosecondsPerElement = 1;
// elements: of a row that is tiled; shorter ones cost more than gathering
constexpr std::uint64_t kShortestRow = 192;
// elements: of a period whose gathered copies stay in the first-level cache
constexpr std::uint64_t kLongestPeriod = 2048;
// bytes: that a block may touch: about the first-level cache
constexpr std::size_t kWorkingSet = 32768;
// elements: of a block; below, calling steps costs more than running them
constexpr std::uint32_t kShortestBlock = 512;
// elements: of a block
constexpr std::uint32_t kLongestBlock = 4096;
// elements: that are computed before they are reduced or summed up
constexpr std::uint64_t kRowBlock = 8192;
// blocks: of a part, where several threads share rows
constexpr std::uint64_t kPartBlocks = 8;
// columns: of a part: its results are small beside what it reads
constexpr std::uint64_t kMinColumnsOfPart = 16;

}  // namespace onnxopt::costs::cpu

namespace onnxopt::costs::depthwise {

// blocks of a multiprocessor: into which tiles are divided by channels where there are fewer
constexpr std::uint64_t kExpandedBlocks = 8;

}  // namespace onnxopt::costs::depthwise

namespace onnxopt::costs::experts {

// rows: between numbers of rows that cuBLASLt gets a plan for; its tiles have 64 rows or more
constexpr std::uint64_t kMinStep = 64;
// plans: from a power of two of rows to the next
constexpr std::uint64_t kSteps = 16;
// blocks: that share the depth of a product
constexpr std::uint64_t kMaxSplits = 16;
// steps of depth: of a block that shares it
constexpr std::uint64_t kMinSteps = 4;
// steps of depth: that beginning and ending a block takes as long as
constexpr std::uint64_t kStepsOfBlock = 6;
// steps of depth: that a launch of its own for the activation takes as long as
constexpr std::uint64_t kStepsOfActivation = 4;

}  // namespace onnxopt::costs::experts

namespace onnxopt::costs::flash_attention {

// keys: that one tile holds, up to which it is faster than several tiles, or than those of warpgroups
constexpr unsigned kMaxShort = 80;
// blocks of a multiprocessor: of long_tile, for which it has to have shared memory
constexpr unsigned kLongBlocks = 2;

}  // namespace onnxopt::costs::flash_attention

namespace onnxopt::costs::gemm {

// blocks of a multiprocessor: of products of few rows, that registers are limited for
constexpr std::uint64_t kBlocksAtOnce = 2;
// us: of a product of ours
constexpr double kLargeCall = 1.35;
// us: of a wave of tiles, a tile for every multiprocessor
constexpr double kLargeTile = 0.64;
// us: the same for each column of a tile
constexpr double kLargeTileColumn = 0.012;
// us: of a step of a tile's depth
constexpr double kLargeStep = 0.089;
// us: the same for each column of a tile
constexpr double kLargeStepColumn = 0.0023;
// us: of a product of cuBLASLt and the activation that reads and writes its result
constexpr double kTheirCall = 4.0;
// us: of a wave of tiles of theirs; they are of many shapes, so the last wave is as good as full
constexpr double kTheirTile = 5.0;
// us: of a step of a tile's depth
constexpr double kTheirStep = 0.757;
// columns: of a tile of theirs, of 128 rows
constexpr double kTheirColumns = 256;
// factor: of the time of a product of ours in float32, whose rows of 128 bytes have half as many elements
constexpr double kLargeFloat32 = 1.1;
// us: as their_call, of float32
constexpr double kTheirCallFloat32 = 7.0;
// us: as their_tile
constexpr double kTheirTileFloat32 = 8.5;
// us: as their_step, of half as many elements
constexpr double kTheirStepFloat32 = 0.78;
// factor: of their time, below which ours is a gain: less than that is what an expectation is off by
constexpr double kClear = 0.95;
// warps of a multiprocessor: that keep the memory busy; where columns are few, blocks have more of them
constexpr std::uint64_t kPackedWarps = 16;
// channels of a: up to which a plan of cuDNN's may win over cuBLASLt, whose tiles they leave half empty
constexpr std::int64_t kShallow = 32;
// rows of a: from which it may
constexpr std::int64_t kManyPixels = 65536;
// algorithms: of cuBLASLt that tuning measures
constexpr int kTunedAlgorithms = 32;
// algorithms: of cuBLASLt that a first run measures
constexpr int kFirstRunAlgorithms = 8;

}  // namespace onnxopt::costs::gemm

namespace onnxopt::costs::group_norm {

// blocks of a multiprocessor: of the first of two launches
constexpr std::uint64_t kBlocksOfSplit = 3;
// vectors: of a thread of such a block, at least
constexpr std::uint64_t kVectorsOfSplit = 4;
// twentieths of the multiprocessors: with a block, below which a larger cluster is chosen
constexpr std::uint64_t kIdleTwentieths = 9;

}  // namespace onnxopt::costs::group_norm

namespace onnxopt::costs::pool {

// threads of a multiprocessor: below which narrower vectors are used where threads share nothing
constexpr std::uint64_t kFewThreads = 256;
// bytes: of the narrowest vector that is used then
constexpr std::size_t kMinAccess = 4;

}  // namespace onnxopt::costs::pool

namespace onnxopt::costs::rowwise {

// columns: of a strided row, as often as they are read, below which it is not split: where 4,096 are read once, blocks
// that read whole rows take 0.6 us less, of 16,384 they take 5 us more
constexpr std::uint64_t kSplitStridedColumns = 5120;
// blocks: of a cluster that goes along a row
constexpr unsigned kBlocksOfLoop = 8;
// rows of a multiprocessor: below which several blocks a row pay
constexpr std::uint64_t kClusterRows = 2;
// columns: of a row below which one block is enough
constexpr std::uint64_t kShortForCluster = 16384;
// parts: of a split row
constexpr std::uint64_t kMaxParts = 512;
// blocks of a multiprocessor: of split rows
constexpr std::uint64_t kBlocksOfSplit = 2;

}  // namespace onnxopt::costs::rowwise

namespace onnxopt::costs::scan {

// blocks of a multiprocessor: of rows that blocks go along; with fewer than a third of the multiprocessors, rows are
// split
constexpr std::uint64_t kBlocksOfLoop = 3;
// chunks: of a row, from which on it is split: two launches take 5 us more than one, a chunk 1.1
constexpr std::uint64_t kChunksOfSplit = 16;
// blocks of a multiprocessor: of a split row
constexpr std::uint64_t kBlocksOfSplit = 2;
// parts: of a split row
constexpr std::uint64_t kMaxParts = 512;

}  // namespace onnxopt::costs::scan

namespace onnxopt::costs::squeeze_excite {

// bytes: of sums that one block adds for a row
constexpr std::uint64_t kMaxRead = 196608;
// bytes: of sums that a block adds where there are more
constexpr std::uint64_t kFoldBytes = 49152;

}  // namespace onnxopt::costs::squeeze_excite

namespace onnxopt::costs::token_attention {

// blocks of a multiprocessor: into which tokens are divided, all groups together, with tensor cores
constexpr std::uint64_t kBlocksOfTiles = 1;
// blocks of a multiprocessor: the same without
constexpr std::uint64_t kBlocksOfLanes = 2;
// rows of a block: up to which the last block adds them up in no more time than another launch: in one buffer
constexpr std::int64_t kFewRows = 8;
// rows of a block: the same where the cache is copied to another buffer
constexpr std::int64_t kFewRowsApart = 4;
// bytes: of caches from which tiles take less time for every number of rows
constexpr std::uint64_t kLongBytes = 12582912;

}  // namespace onnxopt::costs::token_attention

namespace onnxopt::costs::tuning {

// factor: of the time of the first choice, below which another one is taken when the library measures
constexpr double kNoise = 0.97;

}  // namespace onnxopt::costs::tuning
