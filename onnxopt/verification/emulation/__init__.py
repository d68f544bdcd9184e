"""CUDA kernels run on the CPU: g++ compiles their text, and a stand-in for the CUDA driver launches them."""
