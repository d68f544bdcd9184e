"""Recognizing masks of attention. Part of graph: may import program."""
