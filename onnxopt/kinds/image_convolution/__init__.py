"""Kernels of depthwise convolutions. Part of kinds: may import program to fusion."""
