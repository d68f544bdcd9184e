#include "cpu/reduce.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "support/error.h"

namespace onnxopt {
namespace {

constexpr std::size_t kPartials = 16;    // sums side by side: they vectorize, and their errors stay small
constexpr std::size_t kMaxAtOnce = 256;  // elements of a run

// Integers wrap.
template <typename T, typename F>
T Wrapping(T a, T b, F&& f) {
  if constexpr (std::is_floating_point_v<T>) {
    return f(a, b);
  } else {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(
        f(static_cast<std::uint64_t>(static_cast<U>(a)), static_cast<std::uint64_t>(static_cast<U>(b))));
  }
}

template <typename T>
struct Sum {
  static constexpr T kIdentity = T(0);
  static T Merge(T a, T b) {
    return Wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
};

template <typename T>
struct Prod {
  static constexpr T kIdentity = T(1);
  static T Merge(T a, T b) {
    return Wrapping(a, b, [](auto x, auto y) { return x * y; });
  }
};

// NaN in, NaN out.
template <typename T>
struct Max {
  static constexpr T kIdentity =
      std::is_floating_point_v<T> ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::lowest();
  static T Merge(T a, T b) { return a > b || a != a ? a : b; }
};

template <typename T>
struct Min {
  static constexpr T kIdentity =
      std::is_floating_point_v<T> ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
  static T Merge(T a, T b) { return a < b || a != a ? a : b; }
};

// Halves of long runs apart: the error of a sum grows with the logarithm of its length.
template <typename F, typename T>
T OfRun(const T* from, std::size_t n) {
  if (n > kMaxAtOnce) {
    const std::size_t half = n / 2 / kPartials * kPartials;
    return F::Merge(OfRun<F>(from, half), OfRun<F>(from + half, n - half));
  }
  T partial[kPartials];
  std::fill_n(partial, kPartials, F::kIdentity);
  std::size_t k = 0;
  for (; k + kPartials <= n; k += kPartials) {
    for (std::size_t p = 0; p < kPartials; ++p) partial[p] = F::Merge(partial[p], from[k + p]);
  }
  for (; k < n; ++k) partial[k % kPartials] = F::Merge(partial[k % kPartials], from[k]);
  for (std::size_t half = kPartials / 2; half > 0; half /= 2) {
    for (std::size_t p = 0; p < half; ++p) partial[p] = F::Merge(partial[p], partial[p + half]);
  }
  return partial[0];
}

template <typename F, typename T>
void AlongRun(T* to, const T* from, std::size_t n) {
  *to = F::Merge(*to, OfRun<F>(from, n));
}

template <typename F, typename T>
void Across(T* to, const T* from, std::size_t n) {
  for (std::size_t k = 0; k < n; ++k) to[k] = F::Merge(to[k], from[k]);
}

// Calls body(reduction<T>{}, T{}) for the reduction and dtype at hand.
template <template <typename> class F, typename Body>
void WithDtype(Dtype dtype, Body&& body) {
  switch (dtype) {
    case Dtype::kFloat32:
      return body(F<float>{}, float{});
    case Dtype::kFloat64:
      return body(F<double>{}, double{});
    case Dtype::kInt8:
      return body(F<std::int8_t>{}, std::int8_t{});
    case Dtype::kInt16:
      return body(F<std::int16_t>{}, std::int16_t{});
    case Dtype::kInt32:
      return body(F<std::int32_t>{}, std::int32_t{});
    case Dtype::kInt64:
      return body(F<std::int64_t>{}, std::int64_t{});
    case Dtype::kUint8:
    case Dtype::kBool:
      return body(F<std::uint8_t>{}, std::uint8_t{});
    case Dtype::kUint16:
      return body(F<std::uint16_t>{}, std::uint16_t{});
    case Dtype::kUint32:
      return body(F<std::uint32_t>{}, std::uint32_t{});
    case Dtype::kUint64:
      return body(F<std::uint64_t>{}, std::uint64_t{});
    default:
      throw Error("a dtype that is not computed in cannot be reduced");
  }
}

template <typename Body>
void With(Reduction reduction, Dtype dtype, Body&& body) {
  switch (reduction) {
    case Reduction::kSum:
      return WithDtype<Sum>(dtype, body);
    case Reduction::kProd:
      return WithDtype<Prod>(dtype, body);
    case Reduction::kMax:
      return WithDtype<Max>(dtype, body);
    case Reduction::kMin:
      return WithDtype<Min>(dtype, body);
  }
}

}  // namespace

void FillIdentity(Reduction reduction, Dtype dtype, void* to, std::size_t n) {
  With(reduction, dtype, [&](auto f, auto element) {
    using T = decltype(element);
    std::fill_n(static_cast<T*>(to), n, decltype(f)::kIdentity);
  });
}

void ReduceRun(Reduction reduction, Dtype dtype, void* to, const void* from, std::size_t n) {
  With(reduction, dtype, [&](auto f, auto element) {
    using T = decltype(element);
    AlongRun<decltype(f)>(static_cast<T*>(to), static_cast<const T*>(from), n);
  });
}

void ReduceAcross(Reduction reduction, Dtype dtype, void* to, const void* from, std::size_t n) {
  With(reduction, dtype, [&](auto f, auto element) {
    using T = decltype(element);
    Across<decltype(f)>(static_cast<T*>(to), static_cast<const T*>(from), n);
  });
}

}  // namespace onnxopt
