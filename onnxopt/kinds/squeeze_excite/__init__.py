"""Kernels of squeeze-excites. Part of kinds: may import program to fusion."""
