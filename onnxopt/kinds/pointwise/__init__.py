"""Elementwise kernels with index operations. Part of kinds: may import program to fusion."""
