"""Networks, the equivalent ways to spell their parts, and what a respelled network has to keep."""
