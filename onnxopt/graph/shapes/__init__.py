"""Symbolic shapes, dtypes and contents of a model's values. May import program, and no other part of graph."""
