# Builds the library for 64-bit ARM on another machine, with the compiler of Debian's g++-aarch64-linux-gnu:
#     cmake -S custom_ops -B build/custom_ops_aarch64 -G Ninja --toolchain custom_ops/aarch64.cmake
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
