#include "cpu/blocks/gather.h"

#include <algorithm>
#include <cstring>

#include "cpu/blocks/element_size.h"

namespace onnxopt {
namespace {

// A dim of the domain as the input sees it: its extent, and the input's stride, 0 where it is broadcast.
struct Axis {
  std::uint64_t extent;
  std::uint64_t stride;
  std::uint64_t at;
};

// The domain's dims from the innermost outwards, as far as the input is not broadcast over all that is left.
class Odometer {
 public:
  Odometer(const Access& access, std::uint64_t first) {
    std::uint64_t inside = 1;
    for (std::size_t k = 0; k < access.runs; ++k) {
      const Run& run = access.run[k];
      if (run.div > inside) axis_[axes_++] = {run.div / inside, 0, 0};
      axis_[axes_++] = {run.mod, static_cast<std::uint64_t>(run.stride), 0};
      inside = run.div * run.mod;
    }
    for (std::size_t k = 0; k < axes_; ++k) {
      axis_[k].at = first % axis_[k].extent;
      first /= axis_[k].extent;
      if (k > 0) base_ += axis_[k].at * axis_[k].stride;
    }
  }

  const Axis& inner() const { return axis_[0]; }
  // The element where the current run along the inner axis goes on.
  std::uint64_t offset() const { return base_ + axis_[0].at * axis_[0].stride; }
  std::uint64_t left() const { return axis_[0].extent - axis_[0].at; }

  void Next() {
    axis_[0].at = 0;
    for (std::size_t k = 1; k < axes_; ++k) {
      base_ += axis_[k].stride;
      if (++axis_[k].at < axis_[k].extent) return;
      base_ -= axis_[k].extent * axis_[k].stride;
      axis_[k].at = 0;
    }
  }

 private:
  Axis axis_[kMaxRank];
  std::size_t axes_ = 0;
  std::uint64_t base_ = 0;
};

template <typename T>
void GatherElements(T* out, const T* data, const Access& access, std::uint64_t first, std::size_t n) {
  if (access.runs == 0) {
    std::fill_n(out, n, data[0]);
    return;
  }
  Odometer odometer(access, first);
  const bool dense = odometer.inner().stride != 0;
  while (n > 0) {
    const auto run = static_cast<std::size_t>(std::min<std::uint64_t>(n, odometer.left()));
    const T* from = data + odometer.offset();
    if (dense) {
      std::memcpy(out, from, run * sizeof(T));
    } else {
      std::fill_n(out, run, *from);
    }
    out += run;
    n -= run;
    odometer.Next();
  }
}

}  // namespace

void Gather(void* out, const void* data, const Access& access, std::size_t size, std::uint64_t first, std::size_t n) {
  WithElementOf(size, [&](auto element) {
    using T = decltype(element);
    GatherElements(static_cast<T*>(out), static_cast<const T*>(data), access, first, n);
  });
}

}  // namespace onnxopt
