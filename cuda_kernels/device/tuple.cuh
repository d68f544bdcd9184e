// A tuple of values of different types, indexed at compile time; the least that pointwise kernels need. get<I> gives
// the leaf, whose `value` is the element.
#pragma once

namespace onnxopt {

template <typename... T>
struct List {
  static constexpr int size = sizeof...(T);
};

template <int... I>
struct Indices {};

template <int kCount, int... I>
struct MakeIndices : MakeIndices<kCount - 1, kCount - 1, I...> {};

template <int... I>
struct MakeIndices<0, I...> {
  using type = Indices<I...>;
};

template <bool kFirst, typename A, typename B>
struct Either {
  using type = A;
};

template <typename A, typename B>
struct Either<false, A, B> {
  using type = B;
};

template <int kIndex, typename T>
struct Leaf {
  T value;
};

template <typename I, typename... T>
struct Leaves;

template <int... I, typename... T>
struct Leaves<Indices<I...>, T...> : Leaf<I, T>... {};

template <typename... T>
struct Tuple : Leaves<typename MakeIndices<sizeof...(T)>::type, T...> {};

template <int kIndex, typename T>
__device__ inline Leaf<kIndex, T>& get(Leaf<kIndex, T>& leaf) {
  return leaf;
}

template <int kIndex, typename T>
__device__ inline const Leaf<kIndex, T>& get(const Leaf<kIndex, T>& leaf) {
  return leaf;
}

}  // namespace onnxopt
