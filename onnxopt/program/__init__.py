"""What a kernel computes: dtypes, primitives, expressions, operator tables, index maps. Imports no other room."""
