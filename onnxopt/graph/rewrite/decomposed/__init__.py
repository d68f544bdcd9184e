"""Rules that recompose operators which exporters decompose."""
