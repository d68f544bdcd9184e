#include "kinds/kinds.h"

// One line a kind: kinds/<kind>.cc defines the function.
#define ONNXOPT_KINDS(X) \
  X(Pointwise)           \
  X(Rowwise)             \
  X(Scan)                \
  X(Gemm)                \
  X(Convolution)         \
  X(Block)               \
  X(ImageConvolution)    \
  X(Depthwise)           \
  X(Pool)                \
  X(GroupNorm)           \
  X(SqueezeExcite)       \
  X(FlashAttention)      \
  X(Attention)           \
  X(Experts)
namespace onnxopt {
namespace kinds {

#define ONNXOPT_DECLARE(kind) const Kind& kind();
ONNXOPT_KINDS(ONNXOPT_DECLARE)
#undef ONNXOPT_DECLARE

}  // namespace kinds

const Kind* FindKind(const std::string& name) {
#define ONNXOPT_ROW(kind) &kinds::kind(),
  static const Kind* const rows[] = {ONNXOPT_KINDS(ONNXOPT_ROW)};
#undef ONNXOPT_ROW
  for (const Kind* row : rows) {
    if (name == row->name()) return row;
  }
  return nullptr;
}

}  // namespace onnxopt
