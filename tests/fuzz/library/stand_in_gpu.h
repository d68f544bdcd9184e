// A stand-in for the CUDA driver: one GPU that accepts every call and computes nothing. Any call can be made to fail.
#pragma once

#include <string>
#include <vector>

#include "cuda/launch/driver.h"

namespace onnxopt::stand_in {

// The call of `function` that fails, counted from 1 on, with `result`; function empty: none does.
struct Failure {
  std::string function;
  int call = 1;
  cuda::Result result = 2;
};

// Fails as asked from now on, and counts calls from 0.
void SetFailure(const Failure& failure);

// Whether the call that was to fail has been made.
bool HasFailed();

// Names of the driver's functions that take part.
const std::vector<std::string>& DriverFunctions();

// What the last launch asked for.
struct Launched {
  unsigned blocks;
  unsigned threads;
};
extern Launched launched;

const cuda::Driver& Driver();

}  // namespace onnxopt::stand_in
