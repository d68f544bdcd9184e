// Vectors of storage elements: what one load or store instruction moves.
#pragma once

namespace onnxopt {

template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Vector {
  T at[kWidth];
};

template <typename T, int kWidth>
__device__ inline Vector<T, kWidth> load_vector(const T* data) {
  return *reinterpret_cast<const Vector<T, kWidth>*>(data);
}

template <typename T, int kWidth>
__device__ inline void store_vector(T* data, const Vector<T, kWidth>& vector) {
  *reinterpret_cast<Vector<T, kWidth>*>(data) = vector;
}

template <typename T, int kWidth>
__device__ inline Vector<T, kWidth> splat(T element) {
  Vector<T, kWidth> vector;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) vector.at[j] = element;
  return vector;
}

}  // namespace onnxopt
