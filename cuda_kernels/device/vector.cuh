// Vectors of storage elements: what one load or store instruction moves.
#pragma once

namespace onnxopt {

template <typename T, int kWidth, bool kWords = sizeof(T) == 1 && kWidth % 4 == 0>
struct alignas(sizeof(T) * kWidth) Vector {
  T at[kWidth];
};

// Bytes that the compiler is to keep four in a register.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Vector<T, kWidth, true> {
  union {
    T at[kWidth];
    unsigned int words[kWidth / 4];
  };
};

template <typename T, int kWidth>
__device__ inline Vector<T, kWidth> load_vector(const T* data) {
  return *reinterpret_cast<const Vector<T, kWidth>*>(data);
}

// Of what other blocks read again: asks the L2 cache to keep it.
template <typename T, int kWidth>
__device__ inline Vector<T, kWidth> load_kept(const T* data) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(Vector<T, kWidth>) == 16) {
    struct alignas(16) Words {
      unsigned int at[4];
    } words;
    unsigned long long policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("ld.global.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(words.at[0]), "=r"(words.at[1]), "=r"(words.at[2]), "=r"(words.at[3])
                 : "l"(data), "l"(policy));
    return *reinterpret_cast<const Vector<T, kWidth>*>(&words);
  }
#endif
  return load_vector<T, kWidth>(data);
}

// Of what is read once: no place in the multiprocessor's cache for it.
template <typename T, int kWidth>
__device__ inline Vector<T, kWidth> load_once(const T* data) {
#if __CUDA_ARCH__ >= 700
  if constexpr (sizeof(Vector<T, kWidth>) == 16) {
    struct alignas(16) Words {
      unsigned int at[4];
    } words;
    asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.at[0]), "=r"(words.at[1]), "=r"(words.at[2]), "=r"(words.at[3])
                 : "l"(data));
    return *reinterpret_cast<const Vector<T, kWidth>*>(&words);
  }
#endif
  return load_vector<T, kWidth>(data);
}

template <typename T, int kWidth>
__device__ inline void store_vector(T* data, const Vector<T, kWidth>& vector) {
  *reinterpret_cast<Vector<T, kWidth>*>(data) = vector;
}

// Word w of a vector.
template <typename T, int kWidth>
__device__ inline unsigned int& word(Vector<T, kWidth>& vector, int w) {
  return reinterpret_cast<unsigned int*>(&vector)[w];
}

template <typename T, int kWidth>
__device__ inline unsigned int word(const Vector<T, kWidth>& vector, int w) {
  return reinterpret_cast<const unsigned int*>(&vector)[w];
}

// Of what other blocks of the same launch have written: not from the multiprocessor's cache, which may hold what was
// there before.
template <typename T, int kWidth>
__device__ inline Vector<T, kWidth> load_written(const T* data) {
#ifdef __CUDACC__
  static_assert(sizeof(Vector<T, kWidth>) == 8, "two words");
  struct alignas(8) Words {
    unsigned int at[2];
  } words;
  asm volatile("ld.global.cg.v2.b32 {%0, %1}, [%2];" : "=r"(words.at[0]), "=r"(words.at[1]) : "l"(data) : "memory");
  return *reinterpret_cast<const Vector<T, kWidth>*>(&words);
#else
  return load_vector<T, kWidth>(data);
#endif
}

// To global memory by one instruction, also where the elements are computed one after the other: the compiler may store
// each as soon as it has it, and every such store is a write of its own to parts of the same sectors.
template <typename T, int kWidth>
__device__ inline void store_at_once(T* data, const Vector<T, kWidth>& vector) {
#ifdef __CUDACC__
  using Whole = Vector<T, kWidth>;
  if constexpr (sizeof(Whole) == 16) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(data), "r"(word(vector, 0)), "r"(word(vector, 1)),
                 "r"(word(vector, 2)), "r"(word(vector, 3))
                 : "memory");
  } else if constexpr (sizeof(Whole) == 8) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(data), "r"(word(vector, 0)), "r"(word(vector, 1)) : "memory");
  } else if constexpr (sizeof(Whole) == 4) {
    asm volatile("st.global.b32 [%0], %1;" ::"l"(data), "r"(word(vector, 0)) : "memory");
  } else {
    store_vector(data, vector);
  }
#else
  store_vector(data, vector);
#endif
}

template <typename T, int kWidth>
__device__ inline Vector<T, kWidth> splat(T element) {
  Vector<T, kWidth> vector;
#pragma unroll
  for (int j = 0; j < kWidth; ++j) vector.at[j] = element;
  return vector;
}

}  // namespace onnxopt
