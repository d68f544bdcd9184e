"""Program: what a kernel computes. Imports no other room.

Dtypes, primitives, expressions, operator tables, index maps, and a class for the meaning of each kind of kernel.
"""
