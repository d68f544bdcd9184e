"""Kernels of max and average pools in NHWC. Part of kinds: may import program to fusion."""
