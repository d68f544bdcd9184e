"""Kernels of samples of maps, weighed and summed over points. Part of kinds: may import program to fusion."""
