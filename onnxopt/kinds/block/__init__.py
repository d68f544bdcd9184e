"""Blocks of convolutions that share tensors through Split and Concat. Part of kinds: may import program to fusion."""
