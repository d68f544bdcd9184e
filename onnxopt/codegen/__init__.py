"""Kernels to CUDA source, fatbin and kernels.json. May import program to kinds."""
