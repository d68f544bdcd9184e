"""The kinds of kernels, a folder each: search, lowering, entry points, CUDA text. May import program to fusion."""
