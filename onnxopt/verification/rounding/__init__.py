"""How far right computations lie apart: the original in wider dtypes, and with last places changed."""
