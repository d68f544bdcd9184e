// Stores that go past the caches, for results too large to be found in them again. A plain store would first read the
// line that it overwrites.
#pragma once

#include <cstddef>

namespace onnxopt {

// Whether so many bytes of operands do not fit in this machine's last-level cache.
bool ExceedsCache(std::size_t bytes);

void StreamCopy(void* to, const void* from, std::size_t bytes);

// Orders streamed stores before whatever says that they are done.
void StreamFence();

}  // namespace onnxopt
