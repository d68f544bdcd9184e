"""Kernels of mixtures of experts. Part of kinds: may import program to fusion."""
