"""Passes on padding: Pad folded into its consumer, and padding that a graph computes."""
