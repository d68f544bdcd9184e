// The mean and sum of squared deviations of some numbers, and how those of several sets become one. No sum of squares is
// taken of anything but deviations from a mean: nothing cancels where the mean is large.
#pragma once

namespace onnxopt {

struct Moments {
  float mean;
  float squares;  // sum of squared deviations from the mean
};

// Adds the moments of `count` more numbers; weight: their share of all there are with them.
__device__ inline void merge(Moments& a, const Moments& b, float count, float weight) {
  const float apart = b.mean - a.mean;
  a.mean += apart * weight;
  a.squares += b.squares + apart * apart * (count * (1.0f - weight));
}

}  // namespace onnxopt
