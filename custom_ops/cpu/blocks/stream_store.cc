#include "cpu/blocks/stream_store.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace onnxopt {
namespace {

constexpr std::size_t kUsualCache = std::size_t{32} << 20U;  // where the system does not tell

std::size_t CacheBytes() {
#ifdef _SC_LEVEL3_CACHE_SIZE
  const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (bytes > 0) return static_cast<std::size_t>(bytes);
#endif
  return kUsualCache;
}

}  // namespace

bool ExceedsCache(std::size_t bytes) {
  static const std::size_t cache = CacheBytes();
  return bytes >= cache;
}

void StreamCopy(void* to, const void* from, std::size_t bytes) {
#if defined(__x86_64__)
  constexpr std::size_t kWidth = sizeof(__m128i);
  auto* out = static_cast<unsigned char*>(to);
  const auto* in = static_cast<const unsigned char*>(from);
  const std::size_t head = std::min(bytes, (kWidth - reinterpret_cast<std::uintptr_t>(out) % kWidth) % kWidth);
  std::memcpy(out, in, head);
  std::size_t i = head;
  for (; i + kWidth <= bytes; i += kWidth) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(out + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
  }
  std::memcpy(out + i, in + i, bytes - i);
#else
  std::memcpy(to, from, bytes);
#endif
}

void StreamFence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace onnxopt
