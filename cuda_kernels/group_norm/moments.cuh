// The count, mean and sum of squared deviations of some numbers, and how those of several sets become one. No sum of
// squares is taken of anything but deviations from a mean: nothing cancels where the mean is large.
#pragma once

namespace onnxopt {

struct Moments {
  float mean;
  float squares;  // sum of squared deviations from the mean
};

// Those of both sets together, of `count` and `more` numbers; either may be 0.
__device__ inline Moments merged(const Moments& a, float count, const Moments& b, float more) {
  const float whole = count + more;
  if (whole == 0.0f) return a;
  const float share = more / whole;
  const float apart = b.mean - a.mean;
  return {a.mean + apart * share, a.squares + b.squares + apart * apart * (count * share)};
}

}  // namespace onnxopt
