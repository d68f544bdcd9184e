// Which of the evaluators compiled into this library a process uses.
#pragma once

#include "cpu/evaluate/evaluator.h"

namespace onnxopt {

// The best evaluator for this machine.
const Evaluator& BestEvaluator();

}  // namespace onnxopt
