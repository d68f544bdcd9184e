#include "cpu/evaluate/best_evaluator.h"

#include <cstdlib>
#include <string>

#include "cpu/evaluate/targets.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace onnxopt {
namespace {

#if defined(__x86_64__)
// Asked of the processor, as __builtin_cpu_supports of Clang 14 does not know it.
bool HasF16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

const Evaluator& Choose() {
#if defined(__x86_64__)
  // Names the most that may be used, to look for a fault in one evaluator: baseline, avx2 or avx512.
  const char* variable = std::getenv("ONNXOPT_CPU");
  const std::string most = variable == nullptr ? "" : variable;
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && HasF16c();
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl");
  if (has_avx512 && most != avx2::kEvaluator.name && most != baseline::kEvaluator.name) return avx512::kEvaluator;
  if (has_avx2 && most != baseline::kEvaluator.name) return avx2::kEvaluator;
#endif
  return baseline::kEvaluator;
}

}  // namespace

const Evaluator& BestEvaluator() {
  static const Evaluator& evaluator = Choose();
  return evaluator;
}

}  // namespace onnxopt
