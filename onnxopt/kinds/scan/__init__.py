"""Kernels around a cumulative sum. Part of kinds: may import program to fusion."""
