"""What a kernel computes: dtypes, primitives, expressions, operators, accesses by index. Imports no other room."""
