// The operands of a call against the dims that their meaning declares (SHAPES in onnxopt/program/).
#pragma once

#include <initializer_list>
#include <string>

#include "program/shape.h"
#include "program/transform.h"
#include "support/ort.h"

namespace onnxopt {

// Dims that the first operand that has them binds; of kD, that volumes alone have, an image binds none. Other dims are
// numbers from 0 on.
enum DimSymbol : std::int64_t { kN = -1, kH = -2, kW = -3, kC = -4, kD = -5 };

// Throws Error naming the kind, the operand, its shape and what was expected.
class Binding {
 public:
  // Reads the inputs. kind: as errors name it.
  Binding(const char* kind, std::size_t inputs, OrtKernelContext* context);

  // declared: the dims as the meaning has them.
  void Dims(const char* operand, std::size_t input, const char* declared, std::initializer_list<std::int64_t> dims);

  // Of an operand of any shape with so many elements.
  void Elements(const char* operand, std::size_t input, const char* declared, std::int64_t count) const;

  // What a transform reads beside a value of `result`'s shape, in so many samples, channels and groups.
  void Reads(const Transform& transform, const Shape& result, std::int64_t samples, std::int64_t channels,
             std::int64_t groups) const;

  [[noreturn]] void Fail(const std::string& operand, const Shape& shape, const std::string& problem) const;

  // -1 where no operand has bound it.
  std::int64_t operator[](DimSymbol symbol) const { return symbols_[-1 - symbol]; }
  const Shape& shape(std::size_t input) const { return shapes_[input]; }
  const void* data(std::size_t input) const { return data_[input]; }

 private:
  const char* kind_;
  Shape shapes_[kMaxInputs];
  const void* data_[kMaxInputs];
  std::int64_t symbols_[5] = {-1, -1, -1, -1, -1};
};

}  // namespace onnxopt
