#include "evaluator.h"

#include "targets.h"

namespace onnxopt {
namespace {

const Evaluator& Choose() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx2 && avx512) return avx512::kEvaluator;
  if (avx2) return avx2::kEvaluator;
#endif
  return baseline::kEvaluator;
}

}  // namespace

const Evaluator& BestEvaluator() {
  static const Evaluator& evaluator = Choose();
  return evaluator;
}

}  // namespace onnxopt
