"""Convolutions with the nodes around them, which cuDNN runs. Part of kinds: may import program to fusion."""
