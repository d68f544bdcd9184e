"""Kernels of normalizations over groups of channels in NHWC. Part of kinds: may import program to fusion."""
