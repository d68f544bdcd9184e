// What kind a file is, whose, how large and how old, by statx: fstat and fstatat are functions of libc only since
// glibc 2.33, and the library runs on 2.28 (portability.h).
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

namespace onnxopt {

// Of the file `name` in an open folder, or of the open file itself where name is "" and flags has AT_EMPTY_PATH. False,
// with errno, where it cannot be told.
inline bool StatusOf(int folder, const char* name, int flags, struct statx* status) {
  return statx(folder, name, flags, STATX_BASIC_STATS, status) == 0;
}

// Of an open file.
inline bool StatusOf(int file, struct statx* status) { return StatusOf(file, "", AT_EMPTY_PATH, status); }

}  // namespace onnxopt
