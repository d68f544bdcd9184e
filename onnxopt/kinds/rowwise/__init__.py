"""Kernels that reduce along rows. Part of kinds: may import program to fusion."""
