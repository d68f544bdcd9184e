// The one exception type of the library. It never crosses the C boundary: ort.h turns it into an OrtStatus.
#pragma once

#include <stdexcept>
#include <string>

namespace onnxopt {

// Message: what is wrong, where, and what to do next.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace onnxopt
