"""Kernels of attention of many queries. Part of kinds: may import program to fusion."""
