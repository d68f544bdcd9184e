// kernels.json and the fatbin beside it, read and checked.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "program/attention.h"
#include "program/gemm.h"
#include "program/pointwise.h"
#include "program/rowwise.h"
#include "program/scan.h"

namespace onnxopt {

// How a rowwise kernel goes through its rows, see cuda_kernels/rowwise.cuh.
enum class Layout { kNone, kHeld, kRagged, kPiped, kRing, kLooped, kSplit, kStrided };

constexpr const char* kModesAlong = "XYZz";  // of inputs that are read along the columns of a tile

// One entry point of a kernel, see regions.Variant, row_variants.RowVariant and few_rows.FewRowsVariant.
struct Variant {
  std::string symbol;
  std::string modes;  // a letter an access and a condition, see onnxopt/modes.py
  unsigned index;     // 32 or 64
  unsigned vector;
  unsigned unroll;
  unsigned threads;
  unsigned tile = 0;  // rows of a tile, 0 where the variant has none
  std::uint64_t tile_columns = 0;
  bool whole = false;   // a tile has all rows of the domain
  bool slides = false;  // a tile begins in each column with the vector that its first row lies in
  bool waits = false;   // waits by itself for the kernel ahead of it in the stream
  Layout layout = Layout::kNone;
  unsigned lanes = 0;
  unsigned cluster = 1;
  std::uint64_t columns = 0;
  unsigned shared = 0;  // bytes of shared memory a block that are asked for at launch
  unsigned rows = 0;    // of a product, at most
  unsigned launch = 0;  // of a split variant: which of its launches; the others follow the first
};

constexpr unsigned kWarpThreads = 32;

// What one kernel runs, see regions.Region. Each kind has its own class of FusedKernel (kinds.cc).
enum class Kind { kPointwise, kRowwise, kGemm, kAttention, kScan };

struct Kernel {
  std::string name;
  Kind kind;
  std::vector<Dtype> inputs;  // storage dtypes, of every kind
  std::vector<Dtype> outputs;
  Program program;  // of a pointwise kernel
  RowProgram rows;  // of a rowwise one; of a scan what its grid of rows is
  Scan scan;
  Gemm gemm;  // of a product
  TokenAttention attention;
  std::vector<Variant> variants;
  bool cpu;  // the CPU kernel beats ONNX Runtime's own kernels
};

struct KernelFile {
  std::string path;
  std::vector<Kernel> kernels;
  std::vector<char> fatbin;  // empty where the artifact has no CUDA code
};

// Empty where there is no file at `path`. Throws Error saying what is wrong and where, if the file or the fatbin it
// names is damaged, mismatched or of another schema. Whatever is returned keeps every rule of program.py and
// regions.py.
std::optional<KernelFile> ReadKernelFile(const std::string& path);

}  // namespace onnxopt
