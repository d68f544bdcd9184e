"""Symbolic shapes and dtypes of every value. Part of graph: may import program."""
