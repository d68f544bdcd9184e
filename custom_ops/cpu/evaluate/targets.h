// The evaluators compiled into this library. baseline: SSE2 on x86-64, Advanced SIMD on arm64.
#pragma once

#include "cpu/evaluate/evaluator.h"

namespace onnxopt {

namespace baseline {
extern const Evaluator kEvaluator;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Evaluator kEvaluator;
}
namespace avx512 {
extern const Evaluator kEvaluator;
}
#endif

}  // namespace onnxopt
