"""Kernels of one token's attention to a cache. Part of kinds: may import program to fusion."""
